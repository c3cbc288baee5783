"""A step that no recording may serve is built eagerly, and equals eager."""

from hypothesis import given

from graphparity.conformance.checks import Tally, check_step
from graphparity.conformance.decode_batches import (
    DecodeBatch,
    DummyBatch,
    EagerBatch,
    PrefillBatch,
    VarlenBatch,
    decode_batches,
    prefill_batches,
)
from graphparity.conformance.subjects.subject import Subject
from graphparity.fastpath.graph_key import GraphKey

# check_step itself fails if one of these steps is replayed.


def test_dummy_steps_are_eager(subject: Subject, key: GraphKey) -> None:
    """A FULL dummy step of an idle rank has a key, but must not be replayed."""
    check_step(subject, DummyBatch(key))


def test_steps_that_are_not_full_are_eager(subject: Subject, tally: Tally) -> None:
    """The runner serves some decode steps without a graph."""

    @given(batch=decode_batches(subject.limits, subject.graph_keys[0]))
    def check(batch: DecodeBatch) -> None:
        check_step(subject, EagerBatch(batch), tally)

    check()


def test_varlen_steps_are_eager(subject: Subject, tally: Tally) -> None:
    """A step that says ``max_query_len`` promises no more than a bound on its query
    lengths, which no key fixes.
    """

    @given(batch=decode_batches(subject.limits, subject.graph_keys[0]))
    def check(batch: DecodeBatch) -> None:
        check_step(subject, VarlenBatch(batch), tally)

    check()


def test_prefills_are_eager(subject: Subject, tally: Tally) -> None:
    """Prompt chunks carry replay starts, which no recording holds."""

    @given(batch=prefill_batches(subject.limits))
    def check(batch: PrefillBatch) -> None:
        check_step(subject, batch, tally)

    check()
