"""K7: the layout of the capture's batch is not that of the steps it serves."""

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np

from graphparity.conformance.faults.fault import Kind, Layer, fault
from graphparity.conformance.faults.patches import (
    SPECIALIZE,
    replaced,
    while_capturing,
)
from graphparity.conformance.subjects import torch_builders
from graphparity.fastpath.graph_key import GraphKey


@fault(
    Kind.K7,
    "sglang#21987",
    "sglang#19807",
    check="decode steps",
    expected=r"compressor\.token_to_req_indices\[",
)
def uniform_stride_recorded() -> AbstractContextManager[Any]:
    """The recorded build maps tokens to requests by a uniform stride, padded ones to
    the last; the eager build follows the query's starts.
    """

    def request_of_token(sound: Any, batch: Any, tokens: Any) -> Any:
        stride = int(batch.num_scheduled_tokens[0])
        return (tokens // stride).clamp(max=batch.num_reqs - 1)

    return while_capturing(torch_builders, "_request_of_token", request_of_token)


@fault(
    Kind.K7,
    "sglang#16974",
    check="decode steps",
    expected=r"sliding_window\.max_decode_query_len: 1, but should be 2",
    layer=Layer.STATE,
)
def one_token_a_request_recorded() -> AbstractContextManager[Any]:
    """The dummy batch of a recording schedules one token of each request, whatever the
    query length.
    """

    def padded(sound: Any, key: GraphKey, *rest: Any) -> Any:
        ones = np.ones(key.num_reqs, dtype=np.int32)
        return replace(sound(key, *rest), num_scheduled_tokens=ones)

    return replaced(SPECIALIZE, "padded_decode_batch", padded)


@fault(
    Kind.K7,
    "vllm#34903",
    "vllm#36626",
    check="decode steps",
    expected=r"compressor\.slot_mapping: ",
    layer=Layer.STATE,
)
def real_sizes_recorded() -> AbstractContextManager[Any]:
    """The dummy batch of a recording has the real sizes, as steps without a FULL graph
    have them.
    """

    def padded(sound: Any, key: GraphKey, *rest: Any) -> Any:
        return replace(
            sound(key, *rest),
            num_reqs_after_padding=key.num_reqs,
            num_tokens_after_padding=key.num_tokens,
        )

    return replaced(SPECIALIZE, "padded_decode_batch", padded)


@fault(
    Kind.K7,
    "vllm#28015",
    "vllm#49302",
    check="decode steps",
    expected=r"sliding_window\.query_start_loc_cpu\[",
    layer=Layer.STATE,
)
def padded_queries_recorded_as_live() -> AbstractContextManager[Any]:
    """In the dummy batch of a recording the query's starts run on into padding, as if
    padded requests had tokens.
    """

    def padded(sound: Any, key: GraphKey, *rest: Any) -> Any:
        starts = np.arange(key.num_reqs_after_padding + 1, dtype=np.int32)
        return replace(
            sound(key, *rest), query_start_loc_np=starts * np.int32(key.query_len)
        )

    return replaced(SPECIALIZE, "padded_decode_batch", padded)
