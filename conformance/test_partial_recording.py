"""Groups that are not recorded are built in the same step, as in a serial build."""

import pytest
from hypothesis import given, settings

from graphparity.conformance.capture_check import capture_differences, rungs
from graphparity.conformance.checks import Tally, check_history
from graphparity.conformance.decode_batches import Step, histories
from graphparity.conformance.memory import image_of, restore
from graphparity.conformance.partly_recorded import partly_recorded
from graphparity.conformance.recorded_anew import recorded_groups
from graphparity.conformance.subjects.subject import Subject

NUM_KEYS = 4
"""Keys recorded for each refused group, over the range of the subject's."""
MAX_HISTORIES = 5
"""Histories for each refused group."""


def test_any_group_can_be_built_eagerly(subject: Subject, tally: Tally) -> None:
    """With each group refused in turn: values, places and memory are the serial
    build's, but for where token-to-request maps lie; what a forward graph reads is
    filled.
    """
    groups = recorded_groups(subject)
    if len(groups) < 2:
        pytest.skip(f"{subject.name} has no two groups that specialize could split")
    keys = subject.graph_keys[:: max(1, len(subject.graph_keys) // NUM_KEYS)]
    image = image_of(subject.memory)
    try:
        for refused in groups:
            partly = partly_recorded(subject, {refused}, keys)
            _check_histories(partly, tally)
            _check_captures(partly)
    finally:  # the subject's own state knows what it left in memory
        restore(subject.memory, image)


def _check_histories(partly: Subject, tally: Tally) -> None:
    @settings(max_examples=MAX_HISTORIES)
    @given(history=histories(partly.limits, partly.graph_keys))
    def check(history: list[Step]) -> None:
        check_history(partly, history, tally)

    check()


def _check_captures(partly: Subject) -> None:
    for key in rungs(partly.graph_keys):
        differences = capture_differences(partly, key)
        assert differences == [], "\n".join(map(str, differences))
