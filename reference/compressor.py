"""The compressor group's metadata: a ring of raw rows for each request.

Place: the first of the four groups ``prepare_attn`` builds. From vLLM's
``models/deepseek_v41/compressor.py``, without context parallelism.
Invariant: a request owns one block of ``capacity`` rows; block 0 is the null
block and is never written.
"""

import dataclasses

import torch

from graphparity.reference.attention import (
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
)
from graphparity.reference.block_table import PAD_SLOT_ID
from graphparity.reference.kv_cache_interface import CircularBufferSpec
from graphparity.reference.padding import Padding, declared


@dataclasses.dataclass
class CompressorMetadata:
    """Ring slots of one step; all tensors lie on the device."""

    # [num_tokens] int64. Padding tokens map to request 0 at stale positions, so
    # theirs are open; stores stop at query_start_loc, so no kernel reads them.
    slot_mapping: torch.Tensor = dataclasses.field(
        metadata=declared(Padding.UNSPECIFIED)
    )
    # [num_reqs + 1] int32, num_tokens in the padded rows
    query_start_loc: torch.Tensor = dataclasses.field(
        metadata=declared(Padding.SENTINEL, "num_reqs")
    )
    # [num_tokens] int32
    token_to_req_indices: torch.Tensor = dataclasses.field(
        metadata=declared(Padding.REQUEST_0)
    )


class CompressorMetadataBuilder(AttentionMetadataBuilder):
    """Builds ``CompressorMetadata`` from a ``CircularBufferSpec``."""

    def __init__(self, kv_cache_spec: CircularBufferSpec) -> None:
        self.capacity = kv_cache_spec.block_size

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> CompressorMetadata:
        """Map every token to its ring slot.

        ``slot = block * capacity + position % capacity``; -1 where the mapped
        request's block is 0 or the token is past ``num_actual_tokens``.

        Raises:
            ValueError: the batch has no positions.
        """
        common = common_attn_metadata
        if common.positions is None:
            raise ValueError(
                "positions=None leaves the ring slots undefined: give the batch "
                "its token positions."
            )
        token_to_req_indices = common.token_to_req_indices()
        reqs = token_to_req_indices.tolist()
        positions = common.positions.tolist()
        slots = [PAD_SLOT_ID] * common.slot_mapping.numel()
        for token in range(min(common.num_actual_tokens, len(slots))):
            block = int(common.block_table_tensor[reqs[token], 0])
            slots[token] = self._ring_slot(block, positions[token])
        return CompressorMetadata(
            slot_mapping=torch.tensor(
                slots, dtype=torch.int64, device=common.slot_mapping.device
            ),
            query_start_loc=common.query_start_loc.clone(),
            token_to_req_indices=token_to_req_indices.clone(),
        )

    def _ring_slot(self, block: int, position: int) -> int:
        if block == 0:
            return PAD_SLOT_ID
        return block * self.capacity + position % self.capacity
