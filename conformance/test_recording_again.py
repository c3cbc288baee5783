"""What is recorded once more is recorded alike, and two ranks record alike."""

import pytest

from graphparity.conformance.rank_check import ranks_agree
from graphparity.conformance.recording_again import recorded_again_as_the_first_time
from graphparity.conformance.subjects.registry import fresh_subject
from graphparity.conformance.subjects.subject import Subject
from graphparity.conformance.tally import Tally


@pytest.fixture
def fresh(shortest_subject: str, request: pytest.FixtureRequest) -> Subject:
    """A subject of the test's own."""
    return fresh_subject(shortest_subject, request.config.getoption("--recorder"))


def test_recorded_again_as_the_first_time(fresh: Subject) -> None:
    """After a new KV cache nothing is replayed and no released graph holds memory."""
    recorded_again_as_the_first_time(fresh, Tally())


def test_ranks_agree(fresh: Subject) -> None:
    """On keys, their order, what is recorded, and the padding of each step."""
    ranks_agree(fresh, Tally())
