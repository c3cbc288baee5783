"""The strategies reach every corner, and keep within their limits."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import TypeGuard, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

from graphparity.conformance.decode_batches import (
    DecodeBatch,
    DummyBatch,
    EagerBatch,
    PrefillBatch,
    Step,
    StepLimits,
    decode_batches,
    histories,
    prefill_batches,
    sequence_lengths,
)
from graphparity.fastpath.graph_key import GraphKey

T = TypeVar("T")
History = list[Step]

KEYS = (GraphKey(8, 8, 16, 16), GraphKey(3, 4, 6, 8), GraphKey(1, 1, 2, 2))
PADDED = KEYS[1]
MAX_MODEL_LEN = 64


def limits_of(query_len: int) -> StepLimits:
    """The limits of a subject of that query length."""
    return StepLimits(
        query_len=query_len,
        max_num_reqs=8,
        max_num_tokens=32,
        max_model_len=MAX_MODEL_LEN,
        edges=(4, 8),
    )


LIMITS = limits_of(2)
batches = decode_batches(LIMITS, PADDED)
prefills = prefill_batches(LIMITS)
drawn_histories = histories(LIMITS, KEYS)

CHECKED = settings(
    max_examples=200,
    database=None,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


def reach(
    strategy: st.SearchStrategy[T], corner: Callable[[T], bool], draws: int = 1000
) -> T:
    """A drawn value in ``corner``; raises ``NoSuchExample`` if none is drawn."""
    return find(
        strategy,
        corner,
        settings=settings(
            CHECKED, max_examples=draws, phases=[Phase.generate], derandomize=True
        ),
    )


def equal_to(wanted: int) -> Callable[[int], bool]:
    """Whether a length is the wanted one."""
    return lambda length: length == wanted


def is_prefix_of_state_order(batch: DecodeBatch) -> bool:
    """Whether batch rows and state rows are the same."""
    return batch.req_state_indices == tuple(range(len(batch.req_state_indices)))


BATCH_CORNERS: dict[str, Callable[[DecodeBatch], bool]] = {
    "rows in state order": is_prefix_of_state_order,
    "rows permuted": lambda batch: (
        batch.req_state_indices != tuple(sorted(batch.req_state_indices))
    ),
    "a state row past the batch": lambda batch: max(batch.req_state_indices) >= 3,
    "first row shortest": lambda batch: batch.seq_lens[0] < min(batch.seq_lens[1:]),
    "first row longest": lambda batch: batch.seq_lens[0] > max(batch.seq_lens[1:]),
    "the longest sequence": lambda batch: MAX_MODEL_LEN in batch.seq_lens,
    "the shortest sequence": lambda batch: LIMITS.query_len in batch.seq_lens,
    "several rows at an edge": lambda batch: (
        sum(length % 8 == 0 for length in batch.seq_lens) >= 2
    ),
    "another seed": lambda batch: batch.seed > 0,
}

PREFILL_CORNERS: dict[str, Callable[[PrefillBatch], bool]] = {
    "a new request": lambda batch: 0 in batch.computed_lens,
    "replays nothing": lambda batch: not any(batch.replay_starts),
    "replays": lambda batch: any(batch.replay_starts),
    "replays in one row of several": lambda batch: (
        len(batch.replay_starts) > 1
        and any(batch.replay_starts)
        and not all(batch.replay_starts)
    ),
    "replays all it has computed": lambda batch: any(
        0 < start == computed
        for start, computed in zip(
            batch.replay_starts, batch.computed_lens, strict=True
        )
    ),
    "three chunks": lambda batch: len(batch.query_lens) == 3,
    "ends at max_model_len": lambda batch: any(
        query_len + computed == MAX_MODEL_LEN
        for query_len, computed in zip(
            batch.query_lens, batch.computed_lens, strict=True
        )
    ),
}


def is_padded(step: Step) -> bool:
    """Whether a decode step's key has padded rows."""
    return isinstance(step, DecodeBatch) and step.key == PADDED


def follows(history: History, is_earlier: Callable[[Step], bool]) -> bool:
    """Whether a padded decode step follows at once on a step of some kind."""
    return any(
        is_earlier(first) and is_padded(second) for first, second in pairwise(history)
    )


def replays(step: Step) -> bool:
    """Whether a prefill carries a replay start."""
    return isinstance(step, PrefillBatch) and any(step.replay_starts)


def looks_like_a_decode(step: Step) -> TypeGuard[PrefillBatch]:
    """Whether a step's prompt chunks have the shape of a decode step."""
    return isinstance(step, PrefillBatch) and step.full_key is not None


def is_larger_decode(step: Step) -> bool:
    """Whether a decode step leaves values in another's padded rows."""
    return isinstance(step, DecodeBatch) and step.key.num_reqs > PADDED.num_reqs


HISTORY_CORNERS: dict[str, Callable[[History], bool]] = {
    "after a prefill": lambda h: follows(h, lambda s: isinstance(s, PrefillBatch)),
    "after a prefill that replays": lambda h: follows(h, replays),
    "after first chunks that look like a decode step": lambda h: follows(
        h, lambda s: looks_like_a_decode(s) and not any(s.computed_lens)
    ),
    "after later chunks that look like a decode step": lambda h: follows(
        h, lambda s: looks_like_a_decode(s) and all(s.computed_lens)
    ),
    "after a dummy step": lambda h: follows(h, lambda s: isinstance(s, DummyBatch)),
    "after an eager step": lambda h: follows(h, lambda s: isinstance(s, EagerBatch)),
    "after a larger decode step": lambda h: follows(h, is_larger_decode),
    "after a step of its own key": lambda h: follows(h, is_padded),
    "all kinds of steps": lambda h: len({type(step) for step in h}) == 4,
    "a smaller decode step between two": lambda h: any(
        replays(first) and isinstance(second, DecodeBatch) and is_larger_decode(third)
        for first, second, third in zip(h, h[1:], h[2:], strict=False)
        if isinstance(second, DecodeBatch) and second.key.num_reqs < 8
    ),
}


@pytest.mark.parametrize("delta", [-1, 0, 1])
@pytest.mark.parametrize("edge", LIMITS.edges)
def test_lengths_reach_every_multiple_of_an_edge(edge: int, delta: int) -> None:
    """At, just before and just past it."""
    drawn = sequence_lengths(LIMITS)
    for multiple in range(edge, MAX_MODEL_LEN + 1, edge):
        wanted = multiple + delta
        if wanted <= MAX_MODEL_LEN:
            assert reach(drawn, equal_to(wanted)) == wanted


@pytest.mark.parametrize("delta", [-1, 0, 1, 2])
def test_lengths_seek_the_edges_of_long_models(delta: int) -> None:
    """Uniform draws would meet one of 16,384 lengths in 1,000 draws by luck alone."""
    limits = replace(LIMITS, max_model_len=16_384, edges=(4096,))
    assert reach(sequence_lengths(limits), equal_to(8192 + delta)) == 8192 + delta


@pytest.mark.parametrize("query_len", [1, 2, 3])
def test_lengths_reach_both_ends_and_their_neighbours(query_len: int) -> None:
    """The query length, ``max_model_len``, and a step past an edge."""
    drawn = sequence_lengths(limits_of(query_len))
    for wanted in (
        query_len,
        query_len + 1,
        8 + query_len,
        MAX_MODEL_LEN - 1,
        MAX_MODEL_LEN,
    ):
        assert reach(drawn, equal_to(wanted)) == wanted


@pytest.mark.parametrize("corner", BATCH_CORNERS.values(), ids=BATCH_CORNERS)
def test_decode_batches_reach(corner: Callable[[DecodeBatch], bool]) -> None:
    """Each corner, on a key with padded rows."""
    assert corner(reach(batches, corner))


@pytest.mark.parametrize("corner", PREFILL_CORNERS.values(), ids=PREFILL_CORNERS)
def test_prefill_batches_reach(corner: Callable[[PrefillBatch], bool]) -> None:
    """Each corner of prompt chunks."""
    assert corner(reach(prefills, corner))


@pytest.mark.parametrize("corner", HISTORY_CORNERS.values(), ids=HISTORY_CORNERS)
def test_histories_reach_a_padded_decode_step(
    corner: Callable[[History], bool],
) -> None:
    """After every kind of step that can leave something behind."""
    assert corner(reach(drawn_histories, corner))


@pytest.mark.parametrize("position", [-1, -2])
@pytest.mark.parametrize("key", KEYS)
def test_histories_end_in_decode_steps_of_every_key(
    key: GraphKey, position: int
) -> None:
    """The last two steps, whichever key they have."""

    def ends_in_key(history: History) -> bool:
        step = history[position]
        return isinstance(step, DecodeBatch) and step.key == key

    assert ends_in_key(reach(drawn_histories, ends_in_key))


def require_decode_in_limits(batch: DecodeBatch, limits: StepLimits) -> None:
    """Every bound of a decode step."""
    num_reqs = batch.key.num_reqs
    assert len(batch.seq_lens) == len(batch.req_state_indices) == num_reqs
    assert all(limits.query_len <= n <= limits.max_model_len for n in batch.seq_lens)
    assert num_reqs == 1 or len(set(batch.seq_lens)) > 1
    require_distinct_rows(batch.req_state_indices, limits)


def require_prefill_in_limits(batch: PrefillBatch, limits: StepLimits) -> None:
    """Every bound of prompt chunks."""
    assert sum(batch.query_lens) <= limits.max_num_tokens
    if batch.full_key is None:
        assert 1 <= len(batch.query_lens) <= 3
        assert min(batch.query_lens) > limits.query_len
    else:
        assert batch.full_key in KEYS
        assert batch.query_lens == (limits.query_len,) * batch.full_key.num_reqs
    rows = zip(batch.query_lens, batch.computed_lens, batch.replay_starts, strict=True)
    for query_len, computed, start in rows:
        assert 0 <= start <= computed
        assert query_len + computed <= limits.max_model_len
    assert len(batch.req_state_indices) == len(batch.query_lens)
    require_distinct_rows(batch.req_state_indices, limits)


def require_distinct_rows(indices: tuple[int, ...], limits: StepLimits) -> None:
    """Requests have rows of their own in the runner's state."""
    assert len(set(indices)) == len(indices)
    assert all(0 <= index < limits.max_num_reqs for index in indices)


@pytest.mark.parametrize("query_len", [1, 2, 3])
@pytest.mark.parametrize("num_reqs", [1, 2, 8])
def test_decode_batches_keep_within_their_limits(num_reqs: int, query_len: int) -> None:
    """Lengths, rows, and unequal lengths where there are two rows."""
    limits, tokens = limits_of(query_len), num_reqs * query_len
    key = GraphKey(num_reqs, num_reqs, tokens, tokens)

    @CHECKED
    @given(batch=decode_batches(limits, key))
    def check(batch: DecodeBatch) -> None:
        assert batch.key == key
        require_decode_in_limits(batch, limits)

    check()


@pytest.mark.parametrize("query_len", [1, 2, 3])
def test_prefill_batches_keep_within_their_limits(query_len: int) -> None:
    """Chunks fit the buffers and the model, and replay what was computed."""
    limits = limits_of(query_len)

    @CHECKED
    @given(batch=prefill_batches(limits))
    def check(batch: PrefillBatch) -> None:
        require_prefill_in_limits(batch, limits)

    check()


@CHECKED
@given(history=drawn_histories)
def test_histories_keep_within_their_limits(history: History) -> None:
    """Two to six steps; the last two decode."""
    assert 2 <= len(history) <= 6
    assert all(isinstance(step, DecodeBatch) for step in history[-2:])
    for step in history:
        match step:
            case PrefillBatch():
                require_prefill_in_limits(step, LIMITS)
            case DecodeBatch():
                require_decode_in_limits(step, LIMITS)
            case EagerBatch():
                require_decode_in_limits(step.batch, LIMITS)
            case DummyBatch():
                assert step.key in KEYS


def test_decode_batches_shrink_to_short_sequences_in_state_order() -> None:
    """As their docstring says; the first length is one longer, to differ."""
    simplest = find(batches, lambda batch: True, settings=CHECKED)
    assert simplest == DecodeBatch(PADDED, (3, 2, 2), (0, 1, 2), seed=0)
