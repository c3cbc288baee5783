"""Groups that are not recorded are built in the same step, as in a serial build."""

from hypothesis import given, settings

from graphparity.conformance.capture_check import captures_read_compared_memory
from graphparity.conformance.checks import check_history
from graphparity.conformance.decode_batches import Step, histories
from graphparity.conformance.memory import image_of, restore
from graphparity.conformance.partly_recorded import partly_recorded
from graphparity.conformance.recorded_anew import recorded_groups
from graphparity.conformance.subjects.subject import Subject
from graphparity.conformance.tally import Tally

NUM_KEYS = 4
"""Keys recorded for each refused group, over the range of the subject's."""
MAX_HISTORIES = 5
"""Histories for each refused group."""


def any_group_can_be_built_eagerly(subject: Subject, tally: Tally) -> None:
    """With each group refused in turn: values, places and memory are the serial
    build's, but for where token-to-request maps lie; what a forward graph reads is
    filled.

    Raises:
        ParityError: they are not.
    """
    for refused in recorded_groups(subject):
        can_be_built_eagerly(subject, refused, tally)


def can_be_built_eagerly(
    subject: Subject, refused: int, tally: Tally, num_histories: int = MAX_HISTORIES
) -> None:
    """As ``any_group_can_be_built_eagerly``, with one KV-cache group refused."""
    keys = subject.graph_keys[:: max(1, len(subject.graph_keys) // NUM_KEYS)]
    image = image_of(subject.memory)
    try:
        partly = partly_recorded(subject, {refused}, keys)
        _check_histories(partly, tally, num_histories)
        captures_read_compared_memory(partly)
    finally:  # the subject's own state knows what it left in memory
        restore(subject.memory, image)


def _check_histories(partly: Subject, tally: Tally, num_histories: int) -> None:
    @settings(max_examples=num_histories)
    @given(history=histories(partly.limits, partly.graph_keys))
    def check(history: list[Step]) -> None:
        check_history(partly, history, tally)

    check()
