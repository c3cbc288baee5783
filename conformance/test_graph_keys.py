"""The keys that are recorded are those that the runner's dispatch asks for."""

from graphparity.conformance.subjects.subject import Subject
from graphparity.fastpath.graph_key import GraphKey


def test_every_full_decode_step_has_a_key(subject: Subject) -> None:
    """A step of any request count that dispatch serves by a FULL graph has the
    recorded key of exactly its sizes; every other step has none.
    """
    query_len = subject.limits.query_len
    expected = set()
    for num_reqs in range(1, subject.limits.max_num_reqs + 1):
        num_tokens = num_reqs * query_len
        descriptor = subject.dispatch(num_reqs, num_tokens, query_len, 0)
        if descriptor.cg_mode is subject.cudagraph_modes.FULL:
            assert descriptor.num_reqs is not None
            expected.add(
                GraphKey(
                    num_reqs, descriptor.num_reqs, num_tokens, descriptor.num_tokens
                )
            )
    assert set(subject.graph_keys) == expected
    assert expected, "dispatch serves no decode step by a FULL graph"


def test_every_request_count_is_recorded(subject: Subject) -> None:
    """The subject's ladder reaches ``max_num_reqs``, so no decode step is eager."""
    recorded = sorted(key.num_reqs for key in subject.graph_keys)
    assert recorded == list(range(1, subject.limits.max_num_reqs + 1))


def test_a_capture_happened_for_every_key(subject: Subject) -> None:
    """The recorder was asked to capture each key exactly once."""
    assert subject.recorder.num_captures == len(subject.graph_keys)


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
