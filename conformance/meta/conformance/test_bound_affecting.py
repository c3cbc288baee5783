"""A field that follows a bound may be as the recording's bounds make it, no more."""

from collections.abc import Callable

import pytest

from graphparity.conformance import comparer
from graphparity.conformance.checks import check_history, check_step
from graphparity.conformance.comparer import ParityError
from graphparity.conformance.decode_batches import DecodeBatch, EagerBatch
from graphparity.conformance.faults.catalogue import FAULTS
from graphparity.conformance.meta.conformance import faulty_subjects as faults
from graphparity.conformance.subjects.registry import fresh_subject
from graphparity.conformance.subjects.subject import Subject
from graphparity.fastpath.graph_key import GraphKey

Maker = Callable[[str, int, str], Subject]

BATCH = DecodeBatch(GraphKey(3, 4, 6, 8), (5, 16, 17), (3, 1, 2), seed=1)
WINDOW = ("decode_swa_indices", "decode_swa_lens")
"""Fields and buffers that follow the host's bound in ``follows_bound``."""


@pytest.fixture
def window_follows_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The window's fields are declared to follow a bound, ``num_decodes`` to be one."""
    declared = dict.fromkeys(WINDOW, "a test's")
    monkeypatch.setattr(comparer, "BOUND_AFFECTING_FIELDS", declared)
    monkeypatch.setattr(comparer, "BOUND_FIELDS", {"num_decodes": "a test's"})


def subject_of(maker: Maker) -> Subject:
    """A freshly made faulty subject."""
    return maker(faults.name_of(maker, 2), 2, "emulated")


def test_undeclared_it_is_a_difference() -> None:
    """Exact is the default."""
    with pytest.raises(ParityError, match="decode_swa_indices"):
        check_step(subject_of(faults.follows_bound), BATCH)


@pytest.mark.usefixtures("window_follows_bound")
def test_declared_it_may_be_as_the_recording_s_bounds_make_it() -> None:
    """The replay equals an eager build with the bounds that the key is recorded with;
    an eager step has no recording, and is compared exactly.
    """
    subject = subject_of(faults.follows_told_bound)
    check_step(subject, BATCH)
    check_step(subject, EagerBatch(BATCH))


@pytest.mark.usefixtures("window_follows_bound")
def test_declared_it_is_a_difference_where_no_bound_is_told() -> None:
    """Readers of the metadata would take the step's own bound for the frozen one's."""
    with pytest.raises(ParityError, match="decode_swa_indices"):
        check_step(subject_of(faults.follows_bound), BATCH)


@pytest.mark.usefixtures("window_follows_bound")
@pytest.mark.parametrize(
    "fault",
    [
        "padded_lengths_are_one",
        "longest_length_frozen",
        "replays_rebuild_their_tensors",
    ],
)
def test_declared_it_may_differ_in_no_other_way(fault: str) -> None:
    """What no bound explains is found as before."""
    later = DecodeBatch(BATCH.key, (6, 18, 41), (0, 4, 2), seed=2)
    with FAULTS[fault].plant():
        subject = fresh_subject("torch-decode:2")
        with pytest.raises(ParityError):
            check_history(subject, [BATCH, later])
