"""The eager build of steps that no replay serves is what the reference says, field by
field; that of decode steps is checked where they are replayed.
"""

import pytest

from graphparity.conformance import profile
from graphparity.conformance.subjects.subject import Subject
from graphparity.conformance.tally import Tally

pytestmark = pytest.mark.needs_reference


def test_prefills_pad_replayed_slots(subject: Subject, tally: Tally) -> None:
    """Prompt chunks: replay starts are uploaded, replayed slots padded, and the
    lookback tokens are gathered.
    """
    profile.prefills_equal_reference(subject, tally)


def test_dummy_steps_replay_nothing(subject: Subject, tally: Tally) -> None:
    """A dummy step's metadata is that of a capture, with no replay start."""
    profile.dummy_steps_equal_reference(subject, tally)
