"""The graph key of a decode step, and the keys to record.

A key fixes every host value that a FULL decode step's metadata build reads: two
steps of one key differ in device memory alone. The keys are the image of the
runner's own ``dispatch`` over all request counts and decode query lengths, read
when recording, never a formula of ours: what dispatch answers is what will be
asked for. Under data parallelism a step may be padded for a larger rank; those keys
are apart, for one recording has to serve a whole rung if they are to be served.
"""

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from graphparity.reference.input_batch import InputBatch


class GraphKey(NamedTuple):
    """The shape of a uniform decode step, real and padded (host integers)."""

    num_reqs: int
    num_reqs_after_padding: int
    num_tokens: int
    num_tokens_after_padding: int

    @property
    def query_len(self) -> int:
        """Tokens of each request."""
        return self.num_tokens // self.num_reqs

    @property
    def rung(self) -> tuple[int, int]:
        """Requests and tokens after padding: what the step's forward graph runs on."""
        return self.num_reqs_after_padding, self.num_tokens_after_padding


def largest_of_rungs(keys: Iterable[GraphKey]) -> dict[GraphKey, GraphKey]:
    """Every key -> that of the same rung (padded alike) with the most requests."""
    keys = tuple(keys)
    largest: dict[tuple[int, int], GraphKey] = {}
    for key in sorted(keys):
        largest[key.rung] = key
    return {key: largest[key.rung] for key in keys}


class BatchExecutionDescriptor(Protocol):
    """What the runner's dispatch answers (vLLM ``v1/worker/gpu/cudagraph_utils``)."""

    @property
    def cg_mode(self) -> object:
        """The ``CUDAGraphMode`` the step runs in."""

    @property
    def num_tokens(self) -> int:
        """The step's tokens after padding."""

    @property
    def num_reqs(self) -> int | None:
        """The step's requests after padding; None where they are not padded."""

    @property
    def uniform_token_count(self) -> int | None:
        """The query length every request has; None for graphs of any mix."""


class Dispatch(Protocol):
    """``CudaGraphManager.dispatch`` as a step without LoRA calls it."""

    def __call__(
        self,
        num_reqs: int,
        num_tokens: int,
        uniform_token_count: int | None,
        num_active_loras: int,
    ) -> BatchExecutionDescriptor:
        """Choose the graph of a step of this shape."""


def graph_key(input_batch: InputBatch) -> GraphKey:
    """The key of a uniform decode batch."""
    return GraphKey(
        input_batch.num_reqs,
        input_batch.num_reqs_after_padding,
        input_batch.num_tokens,
        input_batch.num_tokens_after_padding,
    )


def require_valid_key(key: GraphKey) -> None:
    """Raise ``ValueError`` naming every rule that ``key`` breaks."""
    num_reqs, padded_reqs, num_tokens, padded_tokens = key
    if num_reqs < 1:
        raise ValueError(f"{key} has no request: a decode step has at least one.")
    rules = {
        f"num_reqs {num_reqs} exceeds num_reqs_after_padding {padded_reqs}": (
            num_reqs > padded_reqs
        ),
        f"num_tokens {num_tokens} is no positive multiple of num_reqs {num_reqs}": (
            num_tokens < 1 or num_tokens % num_reqs != 0
        ),
        f"num_tokens_after_padding {padded_tokens} is not num_reqs_after_padding "
        f"{padded_reqs} times the query length {num_tokens // num_reqs}": (
            padded_tokens != padded_reqs * (num_tokens // num_reqs)
        ),
    }
    broken = [rule for rule, is_broken in rules.items() if is_broken]
    if broken:
        raise ValueError(
            f"{key} is no uniform decode step: {'; '.join(broken)}. Take keys from "
            "keys_to_record(dispatch, ...)."
        )


def keys_to_record(
    dispatch: Dispatch,
    *,
    max_num_reqs: int,
    query_lens: Iterable[int],
    full_mode: object,
) -> tuple[GraphKey, ...]:
    """The keys of every decode step that a FULL graph serves, largest first.

    Args:
        dispatch: the runner's own choice of a graph for a step.
        max_num_reqs: the most requests a step can hold.
        query_lens: the decode query lengths in use, in tokens a request.
        full_mode: the ``CUDAGraphMode.FULL`` that ``dispatch`` answers with.

    Raises:
        ValueError: a FULL graph serves steps whose query lengths differ, so a
            key would not fix the step.
    """
    keys = {
        key
        for query_len in query_lens
        for num_reqs in range(1, max_num_reqs + 1)
        if (key := _full_key(dispatch, num_reqs, query_len, full_mode)) is not None
    }
    return tuple(sorted(keys, key=lambda key: key[::-1], reverse=True))


def keys_padded_for_other_ranks(
    keys: Iterable[GraphKey], dispatch: Dispatch, full_mode: object
) -> tuple[GraphKey, ...]:
    """The further keys of data parallelism, largest first.

    There every rank asks dispatch with its own requests and the most tokens of any
    rank (vLLM ``v1/worker/gpu/dp_utils.py``), so it may run on a rung far above its
    requests. A rank without requests runs a dummy step, which has no key here.

    Args:
        keys: what ``keys_to_record`` answers: the steps of the largest rank. The
            fullest of a rung brings all keys of that rung.
        dispatch: the runner's own choice of a graph for a step.
        full_mode: the ``CUDAGraphMode.FULL`` that ``dispatch`` answers with.
    """
    own = set(keys)
    padded = {
        key
        for largest in set(largest_of_rungs(own).values())
        for num_reqs in range(1, largest.num_reqs)
        if (
            key := _full_key(
                dispatch, num_reqs, largest.query_len, full_mode, largest.num_tokens
            )
        )
        is not None
    }
    return tuple(sorted(padded - own, key=lambda key: key[::-1], reverse=True))


def _full_key(
    dispatch: Dispatch,
    num_reqs: int,
    query_len: int,
    full_mode: object,
    most_tokens: int = 0,
) -> GraphKey | None:
    """The key of a step next to one of ``most_tokens`` tokens on another rank."""
    num_tokens = num_reqs * query_len
    descriptor = dispatch(num_reqs, max(num_tokens, most_tokens), query_len, 0)
    if descriptor.cg_mode is not full_mode:
        return None
    if descriptor.uniform_token_count != query_len or descriptor.num_reqs is None:
        raise ValueError(
            f"dispatch serves {num_reqs} requests of {query_len} tokens with "
            f"{descriptor}, a FULL graph of mixed query lengths: record under "
            "cudagraph_mode FULL_DECODE_ONLY or FULL_AND_PIECEWISE."
        )
    key = GraphKey(num_reqs, descriptor.num_reqs, num_tokens, descriptor.num_tokens)
    require_valid_key(key)
    return key
