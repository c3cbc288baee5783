"""The keys that are recorded are those that the runner's dispatch asks for."""

from graphparity.conformance import profile
from graphparity.conformance.off_ladder import counts_off_the_ladder
from graphparity.conformance.subjects.subject import Subject


def test_every_full_decode_step_has_a_key(subject: Subject) -> None:
    """A step of any request count that dispatch serves by a FULL graph has the
    recorded key of exactly its sizes; every other step has none.
    """
    profile.keys_are_those_of_dispatch(subject)


def test_every_request_count_is_recorded(subject: Subject) -> None:
    """Up to ``max_num_reqs``, or to where the subject says that its ladder ends."""
    recorded = sorted(key.num_reqs for key in subject.graph_keys)
    every = range(1, subject.limits.max_num_reqs + 1)
    assert recorded == sorted({*every} - {*counts_off_the_ladder(subject)})


def test_every_key_is_recorded(subject: Subject) -> None:
    """The recorder was asked to capture each key exactly once, and refused none."""
    profile.every_key_is_recorded(subject)


def test_mixed_and_oversized_steps_have_no_key(subject: Subject) -> None:
    """A step of unequal query lengths, or of more requests than the ladder holds,
    is served by no FULL graph.
    """
    limits = subject.limits
    longest = limits.max_num_reqs * limits.query_len
    mixed = subject.dispatch(2, 2 * limits.query_len + 1, None, 0)
    too_many = subject.dispatch(
        limits.max_num_reqs + 1, longest + limits.query_len, limits.query_len, 0
    )
    for descriptor in (mixed, too_many):
        assert descriptor.cg_mode is not subject.cudagraph_modes.FULL
