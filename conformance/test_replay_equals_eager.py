"""After a replay, memory holds what an eager build of the step would have left, which
is what the reference says.
"""

from graphparity.conformance import profile
from graphparity.conformance.capture_check import captures_read_compared_memory
from graphparity.conformance.subjects.subject import Subject
from graphparity.conformance.tally import Tally
from graphparity.fastpath.graph_key import GraphKey


def test_replay_equals_eager(subject: Subject, key: GraphKey, tally: Tally) -> None:
    """For random batches of every key: values, places, and all device memory; and the
    eager build is the reference's, in live rows and specified padding, where the
    reference knows the builders.
    """
    profile.replays_equal_eager(subject, key, tally)


def test_replay_equals_eager_over_the_known_history(
    subject: Subject, tally: Tally
) -> None:
    """The shortest scenarios of public reports, one after the other."""
    profile.known_history_equals_eager(subject, tally)


def test_replay_equals_eager_over_histories(subject: Subject, tally: Tally) -> None:
    """Prefills, dummy steps and eager steps between decodes leave nothing behind
    that a replay would miss.
    """
    profile.histories_equal_eager(subject, tally)


def test_captures_read_compared_memory(subject: Subject) -> None:
    """What a forward graph captured over a key's rung reads is memory in which a
    replay is compared with the eager build, at the addresses the replay fills.
    """
    captures_read_compared_memory(subject)
