"""Small decode batches with every value written by hand.

Place: the inputs of the reference's tests.
Invariant: nothing is computed by the code under test.
"""

import dataclasses

import torch

from graphparity.reference.attention import CommonAttentionMetadata
from graphparity.reference.input_batch import InputBatch, InputBuffers

STALE_POSITION = 99
"""What the positions of padding tokens hold: a real position of an older step."""


def int32(values: object) -> torch.Tensor:
    """An int32 host tensor."""
    return torch.tensor(values, dtype=torch.int32)


def decode_positions(seq_lens: list[int], query_len: int) -> list[int]:
    """Positions of the last ``query_len`` tokens of each request."""
    return [p for seq_len in seq_lens for p in range(seq_len - query_len, seq_len)]


def decode_batch(
    seq_lens: list[int],
    *,
    block_table: list[list[int]],
    slots: list[int],
    query_len: int = 1,
    num_padded_reqs: int = 0,
) -> CommonAttentionMetadata:
    """A uniform decode batch; padded requests are empty, their tokens stale."""
    num_reqs = len(seq_lens) + num_padded_reqs
    num_live = len(seq_lens) * query_len
    num_tokens = num_reqs * query_len
    starts = [min(row * query_len, num_live) for row in range(num_reqs + 1)]
    positions = decode_positions(seq_lens, query_len)
    positions += [STALE_POSITION] * (num_tokens - num_live)
    return CommonAttentionMetadata(
        query_start_loc=int32(starts),
        query_start_loc_cpu=int32(starts),
        seq_lens=int32(seq_lens + [0] * num_padded_reqs),
        num_reqs=num_reqs,
        num_actual_tokens=num_tokens,
        max_query_len=query_len,
        max_seq_len=max(seq_lens),
        block_table_tensor=int32(block_table),
        slot_mapping=torch.tensor(slots, dtype=torch.int64),
        positions=torch.tensor(positions, dtype=torch.int64),
    )


def input_batch(
    seq_lens: list[int],
    input_buffers: InputBuffers,
    *,
    query_len: int = 1,
    num_padded_reqs: int = 0,
    is_prefilling: list[bool] | None = None,
    req_indices: list[int] | None = None,
) -> InputBatch:
    """The same batch as the runner hands it over, as views of ``input_buffers``."""
    num_reqs = len(seq_lens)
    num_tokens = num_reqs * query_len
    input_buffers.positions.fill_(STALE_POSITION)
    batch = InputBatch.make_dummy(num_reqs, num_tokens, input_buffers)
    input_buffers.seq_lens[:num_reqs] = int32(seq_lens)
    input_buffers.positions[:num_tokens] = torch.tensor(
        decode_positions(seq_lens, query_len)
    )
    padded_reqs = num_reqs + num_padded_reqs
    padded_tokens = padded_reqs * query_len
    if is_prefilling is not None:
        batch.is_prefilling_np[:] = is_prefilling
    idx_mapping = torch.tensor(req_indices or list(range(num_reqs)))
    return dataclasses.replace(
        batch,
        num_reqs_after_padding=padded_reqs,
        num_tokens_after_padding=padded_tokens,
        idx_mapping=idx_mapping,
        idx_mapping_np=idx_mapping.numpy(),
        query_start_loc=input_buffers.query_start_loc[: padded_reqs + 1],
        query_start_loc_np=input_buffers.query_start_loc[: padded_reqs + 1].numpy(),
        seq_lens=input_buffers.seq_lens[:padded_reqs],
        seq_lens_cpu_upper_bound=int32(seq_lens + [0] * num_padded_reqs),
        has_prefill=bool(batch.is_prefilling_np.any()),
        positions=input_buffers.positions[:padded_tokens],
        input_ids=input_buffers.input_ids[:padded_tokens],
        is_padding=input_buffers.is_padding[:padded_tokens],
    )
