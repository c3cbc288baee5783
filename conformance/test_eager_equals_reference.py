"""The eager build of steps that no replay serves is what the reference says, field by
field; that of decode steps is checked where they are replayed.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphparity.conformance.checks import Tally
from graphparity.conformance.decode_batches import (
    DummyBatch,
    PrefillBatch,
    prefill_batches,
)
from graphparity.conformance.reference_check import check_eager_equals_reference
from graphparity.conformance.subjects.subject import Subject
from graphparity.fastpath.graph_key import GraphKey

pytestmark = pytest.mark.needs_reference


def test_prefills_pad_replayed_slots(subject: Subject, tally: Tally) -> None:
    """Prompt chunks: replay starts are uploaded, replayed slots padded, and the
    lookback tokens are gathered.
    """

    @given(batch=prefill_batches(subject.limits))
    def check(batch: PrefillBatch) -> None:
        check_eager_equals_reference(subject, batch, tally)

    check()


def test_dummy_steps_replay_nothing(subject: Subject, tally: Tally) -> None:
    """A dummy step's metadata is that of a capture, with no replay start."""

    @given(key=st.sampled_from(subject.graph_keys))
    def check(key: GraphKey) -> None:
        check_eager_equals_reference(subject, DummyBatch(key), tally)

    check()
