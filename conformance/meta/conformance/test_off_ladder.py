"""Steps of more requests than the last FULL graph holds are eager, and counted."""

from dataclasses import replace
from unittest import mock

import pytest

from graphparity.conformance.comparer import ParityError
from graphparity.conformance.off_ladder import steps_off_the_ladder_are_eager
from graphparity.conformance.subjects.registry import fresh_subject
from graphparity.conformance.tally import Tally
from graphparity.fastpath.metadata_graphs import MetadataGraphs


@pytest.mark.parametrize("query_len", [1, 3])
def test_every_count_past_the_last_rung_is_checked(query_len: int) -> None:
    """9 to 12 requests, none of them replayed."""
    tally = Tally()
    subject = fresh_subject(f"torch-decode-off-ladder:{query_len}")
    steps_off_the_ladder_are_eager(subject, tally)
    assert (tally.batches, tally.steps_replayed) == (4, 0)


def test_a_step_that_is_not_counted_is_reported() -> None:
    """Nothing else shows that it is built eagerly."""
    subject = fresh_subject("torch-decode-off-ladder:1")
    with (
        mock.patch.object(MetadataGraphs, "count_eager", return_value=None),
        pytest.raises(ParityError, match="counted as not FULL: 0, but should be 1"),
    ):
        steps_off_the_ladder_are_eager(subject, Tally())


def test_a_ladder_ends_where_the_subject_says() -> None:
    """A FULL graph past the last rung is no step off the ladder."""
    subject = replace(fresh_subject("torch-decode-off-ladder:1"), largest_rung=4)
    with pytest.raises(AssertionError, match="a FULL graph of 8 requests holds 5"):
        steps_off_the_ladder_are_eager(subject, Tally())
