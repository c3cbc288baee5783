"""After a replay, memory holds what an eager build of the step would have left, which
is what the reference says.
"""

from hypothesis import given

from graphparity.conformance.capture_check import capture_differences, rungs
from graphparity.conformance.checks import Tally, check_history, check_step
from graphparity.conformance.decode_batches import (
    DecodeBatch,
    Step,
    decode_batches,
    histories,
)
from graphparity.conformance.reference_check import check_eager_equals_reference
from graphparity.conformance.subjects.subject import Subject
from graphparity.fastpath.graph_key import GraphKey


def test_replay_equals_eager(subject: Subject, key: GraphKey, tally: Tally) -> None:
    """For random batches of every key: values, places, and all device memory; and the
    eager build is the reference's, in live rows and specified padding, where the
    reference knows the builders.
    """

    @given(batch=decode_batches(subject.limits, key))
    def check(batch: DecodeBatch) -> None:
        check_step(subject, batch, tally)
        if subject.reference is not None:
            check_eager_equals_reference(subject, batch, tally)

    check()


def test_replay_equals_eager_over_histories(subject: Subject, tally: Tally) -> None:
    """Prefills, dummy steps and eager steps between decodes leave nothing behind
    that a replay would miss.
    """

    @given(history=histories(subject.limits, subject.graph_keys))
    def check(history: list[Step]) -> None:
        check_history(subject, history, tally)

    check()


def test_captures_read_compared_memory(subject: Subject) -> None:
    """What a forward graph captured over a key's rung reads is memory in which a
    replay is compared with the eager build, at the addresses the replay fills.
    """
    for key in rungs(subject.graph_keys):
        differences = capture_differences(subject, key)
        assert differences == [], "\n".join(map(str, differences))
