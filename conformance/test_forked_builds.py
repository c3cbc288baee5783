"""Builds recorded as concurrent branches leave what the serial build leaves.

The emulated recorder replays branches in another order than the one they were recorded
in, so that what one of them needs of another shows.
"""

from collections.abc import Iterator
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphparity.conformance.capture_check import captures_read_compared_memory
from graphparity.conformance.checks import check_history, check_step
from graphparity.conformance.decode_batches import (
    DecodeBatch,
    Step,
    decode_batches,
    histories,
)
from graphparity.conformance.memory import image_of, restore
from graphparity.conformance.recorded_anew import forked, recorded_groups
from graphparity.conformance.subjects.registry import load_subject
from graphparity.conformance.subjects.subject import Subject

NUM_KEYS = 8
"""The smallest keys; every second one is recorded, and branches of half of those are
interleaved.
"""
HISTORY_STEPS, MAX_HISTORIES = 20, 2


@pytest.fixture
def forked_subject(
    shortest_subject: str, request: pytest.FixtureRequest
) -> Iterator[Subject]:
    """A few keys of the subject, recorded in branches."""
    subject = load_subject(shortest_subject, request.config.getoption("--recorder"))
    if len(recorded_groups(subject)) < 2:
        pytest.skip(f"{subject.name} has no two groups that could fork")
    keys = subject.graph_keys[-NUM_KEYS::2]
    image = image_of(subject.memory)
    try:
        yield forked(subject, keys)
    finally:  # the subject's own state knows what it left in memory
        restore(subject.memory, image)


def test_forked_replay_equals_serial_eager(forked_subject: Subject) -> None:
    """For random batches of every recorded key: values, places but for the branches'
    own maps, and all other memory.
    """
    for key in forked_subject.graph_keys:

        @given(batch=decode_batches(forked_subject.limits, key))
        def check(batch: DecodeBatch) -> None:
            check_step(forked_subject, batch)

        check()


def test_forked_replay_equals_serial_eager_over_histories(
    forked_subject: Subject,
) -> None:
    """Prefills, dummy steps and eager steps lie between the replays."""
    limits, keys = forked_subject.limits, forked_subject.graph_keys
    parts = st.lists(
        histories(limits, keys), min_size=HISTORY_STEPS // 2, max_size=HISTORY_STEPS
    )

    @settings(max_examples=MAX_HISTORIES)
    @given(history=parts.map(lambda drawn: list(chain.from_iterable(drawn))))
    def check(history: list[Step]) -> None:
        check_history(forked_subject, history[:HISTORY_STEPS])

    check()


def test_forward_graphs_read_what_forked_replays_fill(forked_subject: Subject) -> None:
    """The branch of the serial build's map fills the buffer that a capture reads."""
    captures_read_compared_memory(forked_subject)
