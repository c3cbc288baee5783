"""A step that no recording may serve is built eagerly, and equals eager."""

from graphparity.conformance import profile
from graphparity.conformance.checks import check_step
from graphparity.conformance.decode_batches import DummyBatch
from graphparity.conformance.off_ladder import steps_off_the_ladder_are_eager
from graphparity.conformance.subjects.subject import Subject
from graphparity.conformance.tally import Tally
from graphparity.fastpath.graph_key import GraphKey

# check_step itself fails if one of these steps is replayed.


def test_dummy_steps_are_eager(subject: Subject, key: GraphKey) -> None:
    """A FULL dummy step of an idle rank has a key, but must not be replayed."""
    check_step(subject, DummyBatch(key))


def test_steps_that_are_not_full_are_eager(subject: Subject, tally: Tally) -> None:
    """The runner serves some decode steps without a graph."""
    profile.steps_that_are_not_full_are_eager(subject, tally)


def test_varlen_steps_are_eager(subject: Subject, tally: Tally) -> None:
    """A step that says ``max_query_len`` promises no more than a bound on its query
    lengths, which no key fixes.
    """
    profile.varlen_steps_are_eager(subject, tally)


def test_steps_off_the_ladder_are_eager(subject: Subject, tally: Tally) -> None:
    """More requests than the last FULL graph holds; most subjects have one for all."""
    steps_off_the_ladder_are_eager(subject, tally)


def test_prefills_are_eager(subject: Subject, tally: Tally) -> None:
    """Prompt chunks carry replay starts, which no recording holds."""
    profile.prefills_are_eager(subject, tally)


def test_prefills_shaped_like_decodes_are_eager(subject: Subject, tally: Tally) -> None:
    """Prompt chunks of the decode query length, which a FULL graph serves."""
    profile.prefills_shaped_like_decodes_are_eager(subject, tally)
