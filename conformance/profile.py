"""The profile: everything that CI checks of a subject, check by check, in one order.

The test modules beside this one ask for these checks by subject and graph key; a hunt
for a planted fault runs all of ``PROFILE``. Hypothesis draws by the source of the
functions it is given, so both see the same batches.
"""

from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphparity.conformance.capture_check import captures_read_compared_memory
from graphparity.conformance.checks import check_history, check_step
from graphparity.conformance.comparer import Difference
from graphparity.conformance.decode_batches import (
    DecodeBatch,
    DummyBatch,
    EagerBatch,
    PrefillBatch,
    Step,
    VarlenBatch,
    batches_of_any_key,
    decode_batches,
    histories,
    prefill_batches,
    prefills_shaped_like_decodes,
)
from graphparity.conformance.known_history import known_history
from graphparity.conformance.off_ladder import steps_off_the_ladder_are_eager
from graphparity.conformance.parity_errors import raise_found
from graphparity.conformance.partial_check import any_group_can_be_built_eagerly
from graphparity.conformance.rank_check import ranks_agree
from graphparity.conformance.recording_again import (
    recorded_again_as_the_first_time,
)
from graphparity.conformance.reference_check import check_eager_equals_reference
from graphparity.conformance.run_profiles import CI
from graphparity.conformance.state_machine import run_state_machine
from graphparity.conformance.subjects.subject import Subject
from graphparity.conformance.tally import Tally
from graphparity.fastpath.graph_key import GraphKey

NUM_LIVES, NUM_RULES = CI.lives


def replays_equal_eager(subject: Subject, key: GraphKey, tally: Tally) -> None:
    """Random batches of one key: values, places, and all device memory; and the eager
    build is the reference's, where the reference knows the builders.
    """

    @given(batch=decode_batches(subject.limits, key))
    def check(batch: DecodeBatch) -> None:
        check_step(subject, batch, tally)
        if subject.reference is not None:
            check_eager_equals_reference(subject, batch, tally)

    check()


def known_history_equals_eager(subject: Subject, tally: Tally) -> None:
    """The shortest scenarios of public reports, one after the other."""
    history = known_history(subject.limits, subject.graph_keys)
    check_history(subject, history, tally)


def histories_equal_eager(subject: Subject, tally: Tally) -> None:
    """Prefills, dummy steps and eager steps between decodes leave nothing behind that
    a replay would miss.
    """

    @given(history=histories(subject.limits, subject.graph_keys))
    def check(history: list[Step]) -> None:
        check_history(subject, history, tally)

    check()


def steps_that_are_not_full_are_eager(subject: Subject, tally: Tally) -> None:
    """The runner serves some decode steps without a graph."""

    @given(batch=batches_of_any_key(subject.limits, subject.graph_keys))
    def check(batch: DecodeBatch) -> None:
        check_step(subject, EagerBatch(batch), tally)

    check()


def varlen_steps_are_eager(subject: Subject, tally: Tally) -> None:
    """A step that says ``max_query_len`` promises no more than a bound on its query
    lengths, which no key fixes.
    """

    @given(batch=batches_of_any_key(subject.limits, subject.graph_keys))
    def check(batch: DecodeBatch) -> None:
        check_step(subject, VarlenBatch(batch), tally)

    check()


def prefills_are_eager(subject: Subject, tally: Tally) -> None:
    """Prompt chunks carry replay starts, which no recording holds."""

    @given(batch=prefill_batches(subject.limits))
    def check(batch: PrefillBatch) -> None:
        check_step(subject, batch, tally)

    check()


def prefills_shaped_like_decodes_are_eager(subject: Subject, tally: Tally) -> None:
    """Prompt chunks of the decode query length, which a FULL graph serves."""

    @given(batch=prefills_shaped_like_decodes(subject.limits, subject.graph_keys))
    def check(batch: PrefillBatch) -> None:
        check_step(subject, batch, tally)

    check()


def prefills_equal_reference(subject: Subject, tally: Tally) -> None:
    """Prompt chunks: replay starts are uploaded, replayed slots padded, and the
    lookback tokens are gathered.
    """

    @given(batch=prefill_batches(subject.limits))
    def check(batch: PrefillBatch) -> None:
        check_eager_equals_reference(subject, batch, tally)

    check()


def dummy_steps_equal_reference(subject: Subject, tally: Tally) -> None:
    """A dummy step's metadata is that of a capture, with no replay start."""

    @given(key=st.sampled_from(subject.graph_keys))
    def check(key: GraphKey) -> None:
        check_eager_equals_reference(subject, DummyBatch(key), tally)

    check()


def keys_are_those_of_dispatch(subject: Subject) -> None:
    """A step of any request count that dispatch serves by a FULL graph has the recorded
    key of exactly its sizes; every other step has none.
    """
    query_len = subject.limits.query_len
    expected = set()
    for num_reqs in range(1, subject.limits.max_num_reqs + 1):
        num_tokens = num_reqs * query_len
        descriptor = subject.dispatch(num_reqs, num_tokens, query_len, 0)
        if descriptor.cg_mode is subject.cudagraph_modes.FULL:
            assert descriptor.num_reqs is not None
            expected.add(
                GraphKey(
                    num_reqs, descriptor.num_reqs, num_tokens, descriptor.num_tokens
                )
            )
    assert expected, "dispatch serves no decode step by a FULL graph"
    found = [
        Difference(str(key), *_presence(key in expected))
        for key in sorted(expected ^ set(subject.graph_keys))
    ]
    raise_found(
        subject, "the recorded keys against those that dispatch asks for", found
    )


def every_key_is_recorded(subject: Subject) -> None:
    """The recorder was asked to capture each key once, and refused none."""
    graphs: Any = vars(subject.state).get("graphs")
    refusals = getattr(graphs, "refusals", {})
    found = [
        Difference(str(key), f"refused ({error})", "recorded")
        for key, error in refusals.items()
    ]
    num_captures, num_keys = subject.recorder.num_captures, len(subject.graph_keys)
    if not found and num_captures != num_keys:
        found = [Difference("captures", str(num_captures), str(num_keys))]
    raise_found(subject, "the recordings", found)


def lives_equal_eager(
    subject: Subject,
    tally: Tally,
    *,
    releases: bool,
    num_lives: int = NUM_LIVES,
    num_rules: int = NUM_RULES,
) -> None:
    """Requests are added, grow, finish in mid-batch, are preempted and resume, on
    blocks that others held before; recordings are released and renewed, or not.
    """
    lives = settings(
        max_examples=num_lives,
        stateful_step_count=num_rules,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine(subject, tally, lives, releases=releases)


def _decode_steps(subject: Subject, tally: Tally) -> None:
    for key in subject.graph_keys:
        replays_equal_eager(subject, key, tally)


def _eager_steps(subject: Subject, tally: Tally) -> None:
    for key in subject.graph_keys:
        check_step(subject, DummyBatch(key), tally)
    steps_that_are_not_full_are_eager(subject, tally)
    varlen_steps_are_eager(subject, tally)
    steps_off_the_ladder_are_eager(subject, tally)
    prefills_are_eager(subject, tally)
    prefills_shaped_like_decodes_are_eager(subject, tally)


def _reference(subject: Subject, tally: Tally) -> None:
    if subject.reference is not None:
        prefills_equal_reference(subject, tally)
        dummy_steps_equal_reference(subject, tally)


PROFILE: dict[str, Callable[[Subject, Tally], None]] = {
    "graph keys": lambda subject, tally: keys_are_those_of_dispatch(subject),
    "recordings": lambda subject, tally: every_key_is_recorded(subject),
    "decode steps": _decode_steps,
    "known history": known_history_equals_eager,
    "histories": histories_equal_eager,
    "eager steps": _eager_steps,
    "captures": lambda subject, tally: captures_read_compared_memory(subject),
    "recorded again": recorded_again_as_the_first_time,
    "ranks": ranks_agree,
    "partly recorded": any_group_can_be_built_eagerly,
    "reference": _reference,
    "lives": lambda subject, tally: lives_equal_eager(subject, tally, releases=False),
    "renewed": lambda subject, tally: lives_equal_eager(subject, tally, releases=True),
}
"""Name -> check, in the order in which a hunt runs them."""


def _presence(is_expected: bool) -> tuple[str, str]:
    return ("missing", "recorded") if is_expected else ("recorded", "absent")
