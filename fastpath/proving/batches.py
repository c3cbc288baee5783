"""The batches a key is judged with: its extremes, and random ones between."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from graphparity.fastpath.graph_key import GraphKey, largest_of_rungs
from graphparity.fastpath.proving.verdict import BatchPair, Level
from graphparity.fastpath.runtime_batch import StepRows

RANDOM_BATCHES = {Level.OFF: 0, Level.SAMPLED: 1, Level.ALL: 3}


def longest_batch(key: GraphKey, max_model_len: int, seed: int) -> StepRows:
    """The worst case, with which recordings are made: requests in order of state."""
    lens = [max_model_len] * key.num_reqs
    return _rows(key, lens, range(key.num_reqs), seed)


def shortest_batch(key: GraphKey, max_num_reqs: int, seed: int) -> StepRows:
    """The first step of every request, requests against the order of state."""
    indices = range(max_num_reqs)[::-1][: key.num_reqs]
    return _rows(key, [key.query_len] * key.num_reqs, indices, seed)


def batch_pairs(
    key: GraphKey, *, max_model_len: int, max_num_reqs: int, level: Level, seed: int
) -> list[BatchPair]:
    """Pairs to record and replay with: the worst case against the shortest, against
    one of the same longest sequence and against random ones; and the reverse.
    """
    longest = longest_batch(key, max_model_len, seed)
    shortest = shortest_batch(key, max_num_reqs, seed + 1)
    rng = np.random.default_rng([seed, *key])
    replayed = [shortest, _one_long(key, max_model_len, max_num_reqs, rng)]
    for _ in range(RANDOM_BATCHES[level]):
        lens = rng.integers(key.query_len, max_model_len + 1, size=key.num_reqs)
        replayed.append(_shuffled(key, lens.tolist(), max_num_reqs, rng))
    return [
        *(BatchPair(longest, rows) for rows in replayed),
        BatchPair(shortest, longest),
    ]


def sampled_rungs(keys: Sequence[GraphKey], level: Level) -> list[GraphKey]:
    """Of keys that are padded for a larger rank, those that are compared with the
    fullest of their rung: the one with the fewest requests, which any threshold sets
    apart, the one in the middle and the one with the most; all at level ``all``.
    """
    if level is Level.ALL:
        return list(keys)
    of_rung: dict[tuple[int, int], list[GraphKey]] = {}
    for key in sorted(keys):
        of_rung.setdefault(key.rung, []).append(key)
    return [
        key
        for rung in of_rung.values()
        for key in dict.fromkeys([rung[0], rung[len(rung) // 2], rung[-1]])
    ]


def rung_pairs(
    keys: Sequence[GraphKey], *, max_model_len: int, seed: int
) -> dict[GraphKey, list[BatchPair]]:
    """Largest key of a rung -> its worst case with that of every other key of the rung,
    smallest first. The longest sequence is as long in both.
    """
    pairs: dict[GraphKey, list[BatchPair]] = {}
    for key, largest in largest_of_rungs(sorted(keys)).items():
        if key != largest:
            recorded = longest_batch(largest, max_model_len, seed)
            other = longest_batch(key, max_model_len, seed + 1)
            pairs.setdefault(largest, []).append(BatchPair(recorded, other))
    return pairs


def replayed_rung_pairs(
    pairs: dict[GraphKey, list[BatchPair]], level: Level
) -> dict[GraphKey, list[BatchPair]]:
    """Those of ``rung_pairs`` that are replayed: of the two largest rungs of each query
    length, the smallest key and the one in the middle; all at level ``all``.
    """
    if level is Level.ALL:
        return pairs
    by_query_len: dict[int, list[GraphKey]] = {}
    for largest in sorted(pairs, key=lambda key: key.rung):
        by_query_len.setdefault(largest.query_len, []).append(largest)
    tops = [largest for rungs in by_query_len.values() for largest in rungs[-2:]]
    return {largest: _ends_of(pairs[largest]) for largest in tops}


def _ends_of(pairs: list[BatchPair]) -> list[BatchPair]:
    return list(dict.fromkeys([pairs[0], pairs[len(pairs) // 2]]))


def judged_keys(keys: tuple[GraphKey, ...], level: Level) -> tuple[GraphKey, ...]:
    """The keys that ``level`` asks for, smallest first."""
    by_size = tuple(sorted(set(keys), key=lambda key: key[::-1]))
    if level is Level.OFF:
        return ()
    if level is Level.ALL or len(by_size) < 3:
        return by_size
    padded = [key for key in by_size if key.num_reqs < key.num_reqs_after_padding]
    # A padded key of at least two requests shows most: unequal rows, and a tail.
    several = [key for key in padded if key.num_reqs > 1] or padded
    chosen = {by_size[0], by_size[-1], *several[len(several) // 2 :][:1]}
    return tuple(key for key in by_size if key in chosen)


def _one_long(
    key: GraphKey, max_model_len: int, max_num_reqs: int, rng: np.random.Generator
) -> StepRows:
    """One sequence of the model's length, the others as short as can be."""
    lens = [*([key.query_len] * (key.num_reqs - 1)), max_model_len]
    return _shuffled(key, lens, max_num_reqs, rng)


def _shuffled(
    key: GraphKey, lens: list[int], max_num_reqs: int, rng: np.random.Generator
) -> StepRows:
    indices: npt.NDArray[np.int64] = rng.permutation(max_num_reqs)[: key.num_reqs]
    return _rows(key, lens, indices.tolist(), int(rng.integers(2**31)))


def _rows(
    key: GraphKey, lens: list[int], indices: Sequence[int], seed: int
) -> StepRows:
    return StepRows(
        query_lens=(key.query_len,) * key.num_reqs,
        seq_lens=tuple(lens),
        req_state_indices=tuple(indices),
        padded_reqs=key.num_reqs_after_padding,
        padded_tokens=key.num_tokens_after_padding,
        seed=seed,
    )
