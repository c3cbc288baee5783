"""One step's metadata, group by group, for every layer.

Place: the part of ``prepare_attn`` that a FULL step's replay would replace. From
vLLM's ``v1/worker/gpu/model_states/default.py`` and ``v1/worker/gpu/
attn_utils.py``.
Invariant: groups are built in the KV cache's order; sizes are padded in FULL
steps and real otherwise; the token-to-request map is made once a step.
"""

from typing import Any

import torch

from graphparity.reference.attention import AttentionGroup, CommonAttentionMetadata
from graphparity.reference.input_batch import InputBatch
from graphparity.reference.sliding_window import SlidingWindowMetadataBuilder


def build_attn_metadata(
    input_batch: InputBatch,
    block_tables: tuple[torch.Tensor, ...],
    slot_mappings: torch.Tensor,
    attn_groups: list[list[AttentionGroup]],
    *,
    padded: bool,
    max_seq_len: int | None = None,
    replay_start: torch.Tensor | None = None,
    for_capture: bool = False,
    ubatch_idx: int = 0,
) -> dict[str, Any]:
    """Each layer's metadata by name; a capture's build takes no replay starts.

    Args:
        input_batch: the step's batch.
        block_tables: one table a KV cache group, on the device.
        slot_mappings: ``[num_groups, num_tokens_after_padding]``, on the device.
        attn_groups: the attention groups of each KV cache group.
        padded: whether sizes are the batch's padded ones.
        max_seq_len: the host bound, in tokens; None takes the batch's own.
        replay_start: ``[num_reqs]``, for the sliding-window groups.
        for_capture: whether a graph is captured over the result.
        ubatch_idx: the micro-batch whose builders are used.
    """
    attn_metadata: dict[str, Any] = {}
    token_to_req_indices: torch.Tensor | None = None
    for group_id, groups in enumerate(attn_groups):
        for group in groups:
            common = _common_attn_metadata(
                input_batch,
                group.map_to_kernel_block_table(block_tables[group_id]),
                slot_mappings[group_id],
                padded,
                max_seq_len,
            )
            common._token_to_req_indices_cache = token_to_req_indices
            builder = group.get_metadata_builder(ubatch_idx)
            if for_capture:
                metadata: object = builder.build_for_cudagraph_capture(common)
            elif isinstance(builder, SlidingWindowMetadataBuilder):
                metadata = builder.build(0, common, replay_start=replay_start)
            else:
                metadata = builder.build(0, common)
            for layer_name in group.layer_names:
                attn_metadata[layer_name] = metadata
            token_to_req_indices = common._token_to_req_indices_cache
    return attn_metadata


def _common_attn_metadata(
    input_batch: InputBatch,
    block_table: torch.Tensor,
    slot_mapping: torch.Tensor,
    padded: bool,
    max_seq_len: int | None,
) -> CommonAttentionMetadata:
    num_reqs = input_batch.num_reqs
    num_tokens = input_batch.num_tokens
    if padded:
        num_reqs = input_batch.num_reqs_after_padding
        num_tokens = input_batch.num_tokens_after_padding
    seq_lens_cpu_upper_bound = input_batch.seq_lens_cpu_upper_bound[:num_reqs]
    if max_seq_len is None:
        max_seq_len = max(seq_lens_cpu_upper_bound.tolist())
    max_query_len = input_batch.max_query_len
    if max_query_len is None:
        max_query_len = max(input_batch.num_scheduled_tokens.tolist())
    return CommonAttentionMetadata(
        query_start_loc=input_batch.query_start_loc[: num_reqs + 1],
        query_start_loc_cpu=torch.from_numpy(
            input_batch.query_start_loc_np[: num_reqs + 1]
        ),
        seq_lens=input_batch.seq_lens[:num_reqs],
        num_reqs=num_reqs,
        num_actual_tokens=num_tokens,
        max_query_len=max_query_len,
        max_seq_len=max_seq_len,
        block_table_tensor=block_table,
        slot_mapping=slot_mapping,
        positions=input_batch.positions,
        is_prefilling=torch.from_numpy(input_batch.is_prefilling_np),
        seq_lens_cpu_upper_bound=seq_lens_cpu_upper_bound,
        req_idx=input_batch.idx_mapping_np,
    )
