"""The sparse-MLA group's metadata: where compressed latents are written.

Place: the last of the four groups. From vLLM's
``models/deepseek_v41/sparse_mla.py``; the FlashInfer (Blackwell) and FlashMLA
(Hopper) flavours share it.
Invariant: where the group compresses, block ids are clamped at 0. vLLM clamps
the runner's table in place; here the clamped table is a new one.
"""

import dataclasses

import torch

from graphparity.reference.attention import (
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
)
from graphparity.reference.compressed_slot_mapping import compressed_slot_mapping
from graphparity.reference.kv_cache_interface import MLAAttentionSpec
from graphparity.reference.padding import Padding, declared


@dataclasses.dataclass
class DeepseekV4FlashMLAMetadata:
    """Sparse-MLA metadata of one step; all tensors lie on the device."""

    num_reqs: int
    max_query_len: int
    # a host bound on seq_lens
    max_seq_len: int

    num_actual_tokens: int
    # [num_reqs + 1] int32, num_tokens in the padded rows
    query_start_loc: torch.Tensor = dataclasses.field(
        metadata=declared(Padding.SENTINEL, "num_reqs")
    )
    # [num_tokens] int64, -1 past the real tokens
    slot_mapping: torch.Tensor = dataclasses.field(metadata=declared(Padding.SENTINEL))

    # [num_reqs, max_num_blocks] int32
    block_table: torch.Tensor = dataclasses.field(
        metadata=declared(Padding.SENTINEL, "num_reqs")
    )
    # [num_tokens] int32
    req_id_per_token: torch.Tensor = dataclasses.field(
        metadata=declared(Padding.REQUEST_0)
    )
    block_size: int
    topk_tokens: int


class SparseMLAMetadataBuilder(AttentionMetadataBuilder):
    """Builds ``DeepseekV4FlashMLAMetadata``.

    Raises:
        ValueError: the spec's ``tokens_per_state`` is not 1 or 2.
    """

    def __init__(self, kv_cache_spec: MLAAttentionSpec, *, topk_tokens: int) -> None:
        if kv_cache_spec.tokens_per_state not in (1, 2):
            raise ValueError(
                f"tokens_per_state={kv_cache_spec.tokens_per_state} is not a "
                "DeepSeek-V4.1 compression ratio: use 1 or 2."
            )
        self.kv_cache_spec = kv_cache_spec
        self.topk_tokens = topk_tokens

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> DeepseekV4FlashMLAMetadata:
        """Map tokens to requests and to compressed slots.

        Without compression the slots and the table are the runner's own values.
        """
        common = common_attn_metadata
        block_table = common.block_table_tensor.clone()
        slot_mapping = common.slot_mapping.clone()
        if self.kv_cache_spec.tokens_per_state > 1:
            block_table = block_table.clamp(min=0)
            slot_mapping = compressed_slot_mapping(
                common, block_table, self.kv_cache_spec
            )
        return DeepseekV4FlashMLAMetadata(
            num_reqs=common.num_reqs,
            max_query_len=common.max_query_len,
            max_seq_len=common.max_seq_len,
            num_actual_tokens=common.num_actual_tokens,
            query_start_loc=common.query_start_loc.clone(),
            slot_mapping=slot_mapping,
            block_table=block_table,
            req_id_per_token=common.token_to_req_indices().clone(),
            block_size=self.kv_cache_spec.block_size,
            topk_tokens=self.topk_tokens,
        )
