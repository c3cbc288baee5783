"""Groups that are not recorded are built in the same step, as in a serial build."""

import pytest
from hypothesis import given, settings

from graphparity.conformance.checks import Tally, check_history
from graphparity.conformance.decode_batches import Step, histories
from graphparity.conformance.memory import image_of, restore
from graphparity.conformance.partly_recorded import (
    can_be_partly_recorded,
    partly_recorded,
)
from graphparity.conformance.subjects.subject import Subject

NUM_KEYS = 4
"""Keys recorded for each refused group, over the range of the subject's."""
MAX_HISTORIES = 5
"""Histories for each refused group."""


def test_any_group_can_be_built_eagerly(subject: Subject, tally: Tally) -> None:
    """With each group refused in turn: values, places and memory are the serial
    build's but for where the token-to-request maps lie.
    """
    if not can_be_partly_recorded(subject):
        pytest.skip(f"{subject.name} has no two groups that specialize could split")
    keys = subject.graph_keys[:: max(1, len(subject.graph_keys) // NUM_KEYS)]
    image = image_of(subject.memory)
    try:
        for refused in range(len(subject.attn_groups)):
            _check_histories(partly_recorded(subject, {refused}, keys), tally)
    finally:  # the subject's own state knows what it left in memory
        restore(subject.memory, image)


def _check_histories(partly: Subject, tally: Tally) -> None:
    @settings(max_examples=MAX_HISTORIES)
    @given(history=histories(partly.limits, partly.graph_keys))
    def check(history: list[Step]) -> None:
        check_history(partly, history, tally)

    check()
