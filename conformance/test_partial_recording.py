"""Groups that are not recorded are built in the same step, as in a serial build."""

import pytest

from graphparity.conformance.partial_check import any_group_can_be_built_eagerly
from graphparity.conformance.recorded_anew import recorded_groups
from graphparity.conformance.subjects.subject import Subject
from graphparity.conformance.tally import Tally


def test_any_group_can_be_built_eagerly(subject: Subject, tally: Tally) -> None:
    """With each group refused in turn, but for subjects that have nothing to split."""
    if len(recorded_groups(subject)) < 2:
        pytest.skip(f"{subject.name} has no two groups that specialize could split")
    any_group_can_be_built_eagerly(subject, tally)
