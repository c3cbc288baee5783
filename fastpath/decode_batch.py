"""The dummy decode batch on which a key's metadata build is recorded.

It is padded like a runtime step of the key, so the recorded build reads the
addresses and host values of every such step. It overwrites the live input
buffers: only while recording, never while serving.
"""

from dataclasses import replace

import numpy as np
import torch

from graphparity.fastpath.graph_key import GraphKey, require_valid_key
from graphparity.reference.input_batch import InputBatch, InputBuffers


def padded_decode_batch(
    key: GraphKey, input_buffers: InputBuffers, max_model_len: int
) -> InputBatch:
    """A dummy uniform decode batch, padded like a runtime step of ``key``.

    Padded requests are empty and leave 0 in the host bounds, as the runner does;
    live requests take the worst-case bound ``max_model_len``, so a bound frozen
    in the recording holds for every step of the key.

    Args:
        key: the step's shape.
        input_buffers: the runner's persistent device buffers, overwritten.
        max_model_len: the longest sequence in tokens.

    Raises:
        ValueError: the key is malformed, exceeds the buffers, or its query is
            longer than ``max_model_len``.
    """
    require_valid_key(key)
    _require_room(key, input_buffers, max_model_len)
    padded_reqs, padded_tokens = (
        key.num_reqs_after_padding,
        key.num_tokens_after_padding,
    )
    query_start_loc_np = np.full(padded_reqs + 1, key.num_tokens, dtype=np.int32)
    query_start_loc_np[: key.num_reqs + 1] = (
        np.arange(key.num_reqs + 1, dtype=np.int32) * key.query_len
    )
    dummy = InputBatch.make_dummy(key.num_reqs, key.num_tokens, input_buffers)
    return replace(
        _with_drafts(dummy, key),
        num_reqs_after_padding=padded_reqs,
        num_tokens_after_padding=padded_tokens,
        query_start_loc=input_buffers.query_start_loc[: padded_reqs + 1],
        query_start_loc_np=query_start_loc_np,
        seq_lens=input_buffers.seq_lens[:padded_reqs],
        seq_lens_cpu_upper_bound=worst_case_bounds(key, max_model_len),
        input_ids=input_buffers.input_ids[:padded_tokens],
        positions=input_buffers.positions[:padded_tokens],
        is_padding=input_buffers.is_padding[:padded_tokens],
    )


def worst_case_bounds(key: GraphKey, max_model_len: int) -> torch.Tensor:
    """The host bounds that ``key`` is recorded with: [num_reqs_after_padding] int32 on
    the host, ``max_model_len`` tokens for live requests and 0 for padded ones.
    """
    bounds = torch.zeros(key.num_reqs_after_padding, dtype=torch.int32)
    bounds[: key.num_reqs] = max_model_len
    return bounds


def _with_drafts(batch: InputBatch, key: GraphKey) -> InputBatch:
    """Schedule the drafts that the key's query length implies: one token of each
    request is sampled, the others are drafts.
    """
    num_drafts = key.query_len - 1
    if not num_drafts:
        return batch
    return replace(
        batch,
        num_draft_tokens=key.num_reqs * num_drafts,
        num_draft_tokens_per_req=np.full(key.num_reqs, num_drafts, dtype=np.int32),
    )


def _require_room(
    key: GraphKey, input_buffers: InputBuffers, max_model_len: int
) -> None:
    if key.num_reqs_after_padding > input_buffers.max_num_reqs:
        raise ValueError(
            f"{key} needs {key.num_reqs_after_padding} requests but the input buffers "
            f"hold {input_buffers.max_num_reqs}: raise max_num_seqs or drop the key."
        )
    if key.num_tokens_after_padding > input_buffers.max_num_tokens:
        raise ValueError(
            f"{key} needs {key.num_tokens_after_padding} tokens but the input buffers "
            f"hold {input_buffers.max_num_tokens}: raise max_num_batched_tokens or "
            "drop the key."
        )
    if max_model_len < key.query_len:
        raise ValueError(
            f"max_model_len {max_model_len} is below the query length {key.query_len} "
            f"of {key}: no sequence can hold such a step."
        )
