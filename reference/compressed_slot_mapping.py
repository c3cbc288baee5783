"""Slots of compressed states: one state stands for several tokens.

Place: used by the sparse-indexer and sparse-MLA groups whose spec compresses.
From vLLM's ``v1/attention/backends/mla/compressor_utils.py``, without context
parallelism.
Invariant: the last token of a compressed run carries the state's slot; every
other token, and every token whose own slot is -1, carries -1.
"""

import torch

from graphparity.reference.attention import CommonAttentionMetadata
from graphparity.reference.block_table import PAD_SLOT_ID
from graphparity.reference.kv_cache_interface import KVCacheSpec


def compressed_slot_mapping(
    common: CommonAttentionMetadata,
    block_table: torch.Tensor,
    kv_cache_spec: KVCacheSpec,
) -> torch.Tensor:
    """``[num_actual_tokens]`` int64 on the device: each token's state slot.

    ``slot = block * num_states + state % num_states`` with ``state = position //
    tokens_per_state``, where ``position`` comes from the sequence length. Tokens
    of no request, padding among them, carry -1.
    """
    starts = common.query_start_loc.tolist()
    token_slots = common.slot_mapping.tolist()
    slots = [PAD_SLOT_ID] * common.num_actual_tokens
    for row in range(common.num_reqs):
        seq_len = int(common.seq_lens[row])
        for token in range(starts[row], starts[row + 1]):
            position = seq_len - (starts[row + 1] - token)
            if token_slots[token] != PAD_SLOT_ID:
                slots[token] = _state_slot(block_table[row], position, kv_cache_spec)
    return torch.tensor(slots, dtype=torch.int64, device=common.slot_mapping.device)


def _state_slot(
    block_table_row: torch.Tensor, position: int, kv_cache_spec: KVCacheSpec
) -> int:
    if (position + 1) % kv_cache_spec.tokens_per_state != 0:
        return PAD_SLOT_ID
    state = position // kv_cache_spec.tokens_per_state
    num_states = kv_cache_spec.num_states
    return int(block_table_row[state // num_states]) * num_states + state % num_states
