"""The smallest pair of batches that still shows a finding, within a bounded effort."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from graphparity.fastpath.graph_key import GraphKey
from graphparity.fastpath.proving.verdict import BatchPair
from graphparity.fastpath.runtime_batch import StepRows

MAX_ATTEMPTS = 24
Shows = Callable[[GraphKey, BatchPair], bool]


def smallest(
    key: GraphKey, pair: BatchPair, keys: Sequence[GraphKey], shows: Shows
) -> tuple[GraphKey, BatchPair]:
    """Shrink greedily: fewer requests, then shorter sequences in order of state.

    Args:
        key: the key of ``pair``.
        pair: shows the finding.
        keys: the keys there are.
        shows: whether a pair of some key still shows it.
    """
    attempts = 0
    is_smaller = True
    while is_smaller and attempts < MAX_ATTEMPTS:
        is_smaller = False
        for candidate in _smaller(key, pair, keys):
            attempts += 1
            if shows(*candidate):
                (key, pair), is_smaller = candidate, True
                break
            if attempts >= MAX_ATTEMPTS:
                break
    return key, pair


def _smaller(
    key: GraphKey, pair: BatchPair, keys: Sequence[GraphKey]
) -> Iterator[tuple[GraphKey, BatchPair]]:
    for other in sorted(keys, key=lambda it: it[::-1]):
        if other[::-1] < key[::-1] and _is_prefix(other, key):
            yield other, _on_key(pair, other)
    for rows in _shorter(pair.replayed):
        yield key, replace(pair, replayed=rows)
    for rows in _shorter(pair.recorded):
        yield key, replace(pair, recorded=rows)


def _is_prefix(other: GraphKey, key: GraphKey) -> bool:
    return other.query_len == key.query_len and other.num_reqs <= key.num_reqs


def _on_key(pair: BatchPair, key: GraphKey) -> BatchPair:
    return BatchPair(*(_truncated(it, key) for it in (pair.recorded, pair.replayed)))


def _truncated(rows: StepRows, key: GraphKey) -> StepRows:
    return replace(
        rows,
        query_lens=tuple(rows.query_lens[: key.num_reqs]),
        seq_lens=tuple(rows.seq_lens[-key.num_reqs :]),
        req_state_indices=tuple(rows.req_state_indices[: key.num_reqs]),
        padded_reqs=key.num_reqs_after_padding,
        padded_tokens=key.num_tokens_after_padding,
    )


def _shorter(rows: StepRows) -> Iterator[StepRows]:
    """The batch with shorter sequences, most of them gone first."""
    shortest = rows.query_lens[0]
    lens = tuple(rows.seq_lens)
    in_order = tuple(range(rows.num_reqs))
    if tuple(rows.req_state_indices) != in_order:
        yield replace(rows, req_state_indices=in_order)
    for shorter in (
        tuple(shortest for _ in lens),
        tuple(shortest + (it - shortest) // 2 for it in lens),
        *(
            (*lens[:i], shortest + (lens[i] - shortest) // 2, *lens[i + 1 :])
            for i in range(len(lens))
        ),
        tuple(max(shortest, it - 1) for it in lens),
    ):
        if shorter != lens:
            yield replace(rows, seq_lens=shorter)
