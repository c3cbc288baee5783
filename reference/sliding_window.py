"""The sliding-window group's metadata: the slots each token's window reads.

Place: built for every ``SlidingWindowMLASpec`` group, with the step's replay
starts. From vLLM's ``v1/attention/backends/mla/sparse_swa.py``; the FlashInfer
(Blackwell) and FlashMLA (Hopper) flavours agree on every field kept here.
Left out: prefill fields, tile schedules, the caches a forward fills.
Invariant: a token without a slot reads nothing: its count is 0, its row all -1.
"""

import dataclasses

import torch

from graphparity.reference.attention import (
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
    uniform_query_len,
)
from graphparity.reference.kv_cache_interface import SlidingWindowMLASpec
from graphparity.reference.padding import Padding, declared


@dataclasses.dataclass
class DeepseekSparseSWAMetadata:
    """Sliding-window rows of one decode step; device tensors but ``_cpu``."""

    # [num_reqs, max_num_blocks] int32
    block_table: torch.Tensor = dataclasses.field(
        metadata=declared(Padding.SENTINEL, "num_reqs")
    )
    # [num_tokens] int64, -1 past the real tokens
    slot_mapping: torch.Tensor = dataclasses.field(metadata=declared(Padding.SENTINEL))
    block_size: int
    # [num_reqs] int32, 0 in the padded rows
    seq_lens: torch.Tensor = dataclasses.field(
        metadata=declared(Padding.SENTINEL, "num_reqs")
    )
    # [num_reqs + 1] int32, num_tokens in the padded rows
    query_start_loc: torch.Tensor = dataclasses.field(
        metadata=declared(Padding.SENTINEL, "num_reqs")
    )
    query_start_loc_cpu: torch.Tensor = dataclasses.field(
        metadata=declared(Padding.SENTINEL, "num_reqs")
    )

    # [num_tokens] bool, False past the real tokens
    is_valid_token: torch.Tensor = dataclasses.field(
        metadata=declared(Padding.SENTINEL)
    )
    # [num_tokens] int32
    token_to_req_indices: torch.Tensor = dataclasses.field(
        metadata=declared(Padding.REQUEST_0)
    )
    # [num_decode_tokens, 1, sliding_window] int32, -1 from decode_swa_lens on
    decode_swa_indices: torch.Tensor = dataclasses.field(
        metadata=declared(Padding.SENTINEL)
    )
    # [num_decode_tokens] int32, 0 past the real tokens
    decode_swa_lens: torch.Tensor = dataclasses.field(
        metadata=declared(Padding.SENTINEL)
    )
    decode_swa_width: int
    # [num_reqs] int32. vLLM's eager tensor ends at the real requests, its
    # captured one at the buffer's end: padded requests have no valid token.
    replay_start: torch.Tensor = dataclasses.field(
        metadata=declared(Padding.UNSPECIFIED, "num_reqs")
    )

    num_decodes: int
    num_prefills: int
    num_decode_tokens: int
    num_prefill_tokens: int
    max_decode_query_len: int


class SlidingWindowMetadataBuilder(AttentionMetadataBuilder):
    """Builds ``DeepseekSparseSWAMetadata`` for uniform decode batches.

    ``decode_query_len`` is the longest decode query: 1 + speculative tokens.
    """

    def __init__(
        self, kv_cache_spec: SlidingWindowMLASpec, *, decode_query_len: int = 1
    ) -> None:
        self.block_size = kv_cache_spec.block_size
        self.window_size = kv_cache_spec.sliding_window
        self.decode_query_len = decode_query_len

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
        replay_start: torch.Tensor | None = None,
    ) -> DeepseekSparseSWAMetadata:
        """List the window of every token.

        Args:
            common_prefix_len: unread.
            common_attn_metadata: the batch.
            fast_build: unread.
            replay_start: ``[num_reqs]`` or longer, the first position each
                request holds window KV for; None means 0 for all.

        Raises:
            ValueError: the batch is not a uniform decode batch.
        """
        common = common_attn_metadata
        uniform_query_len(common, self.decode_query_len)
        starts = [0] * common.num_reqs
        if replay_start is not None:
            for row, start in enumerate(replay_start.tolist()[: common.num_reqs]):
                starts[row] = start
        is_valid = [slot >= 0 for slot in common.slot_mapping.tolist()]
        windows = [
            _window(common, token, starts, self.window_size)
            if is_valid[token]
            else range(0)
            for token in range(common.num_actual_tokens)
        ]
        slots = [
            [self._slots(common, token, window)] for token, window in enumerate(windows)
        ]
        device = common.slot_mapping.device

        def int32(values: object) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.int32, device=device)

        return DeepseekSparseSWAMetadata(
            block_table=common.block_table_tensor.clone(),
            slot_mapping=common.slot_mapping.clone(),
            block_size=self.block_size,
            seq_lens=common.seq_lens.clone(),
            query_start_loc=common.query_start_loc.clone(),
            query_start_loc_cpu=common.query_start_loc_cpu.clone(),
            is_valid_token=torch.tensor(is_valid, dtype=torch.bool, device=device),
            token_to_req_indices=common.token_to_req_indices().clone(),
            decode_swa_indices=int32(slots),
            decode_swa_lens=int32([w.stop - w.start for w in windows]),
            decode_swa_width=self.window_size,
            replay_start=int32(starts),
            num_decodes=common.num_reqs,
            num_prefills=0,
            num_decode_tokens=common.num_actual_tokens,
            num_prefill_tokens=0,
            max_decode_query_len=min(common.max_query_len, self.decode_query_len),
        )

    def _slots(
        self, common: CommonAttentionMetadata, token: int, window: range
    ) -> list[int]:
        """Slots of the window's positions, oldest first, then -1 to the width."""
        req = int(common.token_to_req_indices()[token])
        slots = [-1] * self.window_size
        for offset, position in enumerate(window):
            block = int(common.block_table_tensor[req, position // self.block_size])
            slots[offset] = block * self.block_size + position % self.block_size
        return slots


def _window(
    common: CommonAttentionMetadata, token: int, starts: list[int], window_size: int
) -> range:
    """Positions a token reads; its own is the last.

    A replay start past the token leaves a range whose ``stop - start`` is not
    positive: vLLM's count is that difference, so it is kept.
    """
    req = int(common.token_to_req_indices()[token])
    query_end = int(common.query_start_loc[req + 1])
    position = int(common.seq_lens[req]) - (query_end - token)
    return range(max(0, position - window_size + 1, starts[req]), position + 1)
