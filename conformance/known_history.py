"""One history in which the shortest scenarios of public reports follow each other.

Random histories come to them sooner or later; this one does so in every run. What each
step leaves behind, the next ones must not read: a large step in a smaller one's
padding, replay starts of a prompt in rows that a step of one request does not upload,
a dummy run between real steps, a key of the same rung, prompt chunks that look like a
decode.
"""

from collections.abc import Sequence

from graphparity.conformance.decode_batches import (
    DecodeBatch,
    DummyBatch,
    PrefillBatch,
    Step,
    StepLimits,
)
from graphparity.fastpath.graph_key import GraphKey


def known_history(limits: StepLimits, keys: Sequence[GraphKey]) -> list[Step]:
    """The history, of the smallest padded key of two requests or more and its rung."""
    smallest, *_, largest = sorted(keys)
    padded = min(
        (it for it in keys if 1 < it.num_reqs < it.num_reqs_after_padding),
        default=largest,
    )
    full = max(it for it in keys if it.rung == padded.rung)
    return [
        _decode(limits, largest, seed=1),
        _decode(limits, padded, seed=2),
        _prompts(limits, padded.num_reqs, limits.query_len + 1),
        _decode(limits, smallest, seed=3),
        _decode(limits, padded, seed=4),
        DummyBatch(largest),
        _decode(limits, padded, seed=5),
        _decode(limits, full, seed=6),
        _decode(limits, padded, seed=7),
        _prompts(limits, padded.num_reqs, limits.query_len, padded),
        _decode(limits, padded, seed=8),
    ]


def _decode(limits: StepLimits, key: GraphKey, seed: int) -> DecodeBatch:
    """Unequal rows, in another order than the state's; another seed, other lengths."""
    span = limits.max_model_len - limits.query_len
    lengths = [limits.query_len + (7 * row + 5 * seed) % span for row in range(key[0])]
    return DecodeBatch(key, tuple(lengths), tuple(reversed(range(key[0]))), seed)


def _prompts(
    limits: StepLimits, num_reqs: int, query_len: int, full_key: GraphKey | None = None
) -> PrefillBatch:
    """Later chunks, as many as a step holds, each of which replays its window."""
    num_reqs = min(num_reqs, limits.max_num_tokens // query_len)
    computed = [limits.query_len + 3 + row for row in range(num_reqs)]
    return PrefillBatch(
        query_lens=(query_len,) * num_reqs,
        computed_lens=tuple(computed),
        replay_starts=tuple(length - 1 for length in computed),
        req_state_indices=tuple(range(num_reqs)),
        seed=9,
        full_key=full_key,
    )
