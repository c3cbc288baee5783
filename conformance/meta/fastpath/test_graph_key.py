"""The keys to record are what the runner's dispatch answers, and nothing else."""

import pytest

from graphparity.conformance.subjects.torch_decode import dispatch
from graphparity.fastpath.capture_ladder import Descriptor
from graphparity.fastpath.graph_key import (
    GraphKey,
    keys_padded_for_other_ranks,
    keys_to_record,
    require_valid_key,
)
from graphparity.reference.interface import CUDAGraphMode

RUNGS = {
    1: {1: 1, 2: 2, 3: 4, 4: 4, 5: 8, 6: 8, 7: 8, 8: 8},
    2: {1: 1, 2: 2, 3: 4, 4: 4, 5: 8, 6: 8, 7: 8, 8: 8},
    3: {1: 1, 2: 2, 3: 3, 4: 6, 5: 6, 6: 6, 7: 8, 8: 8},
}
"""Query length -> requests -> requests after padding, on capture sizes 1, 2, 4, 8,
16 and 24 rounded up to whole requests, of which at most 8 exist."""

MALFORMED = {
    "GraphKey(3, 2, 3, 2)": (
        GraphKey(3, 2, 3, 2),
        ["num_reqs 3 exceeds num_reqs_after_padding 2"],
    ),
    "GraphKey(0, 1, 0, 1)": (GraphKey(0, 1, 0, 1), ["has no request"]),
    "GraphKey(-1, 1, 1, 1)": (GraphKey(-1, 1, 1, 1), ["has no request"]),
    "GraphKey(2, 2, -2, -2)": (
        GraphKey(2, 2, -2, -2),
        ["num_tokens -2 is no positive multiple of num_reqs 2"],
    ),
    "GraphKey(2, 2, 0, 0)": (
        GraphKey(2, 2, 0, 0),
        ["num_tokens 0 is no positive multiple of num_reqs 2"],
    ),
    "GraphKey(2, 2, 3, 2)": (
        GraphKey(2, 2, 3, 2),
        ["num_tokens 3 is no positive multiple of num_reqs 2"],
    ),
    "GraphKey(2, 4, 4, 4)": (
        GraphKey(2, 4, 4, 4),
        ["num_tokens_after_padding 4 is not num_reqs_after_padding 4 times the query"],
    ),
    "GraphKey(3, 2, 4, 9)": (
        GraphKey(3, 2, 4, 9),
        [
            "num_reqs 3 exceeds",
            "num_tokens 4 is no positive multiple",
            "num_tokens_after_padding 9 is not",
        ],
    ),
}


def toy_keys(*query_lens: int, max_num_reqs: int = 8) -> tuple[GraphKey, ...]:
    """The keys that the toy dispatch asks for."""
    return keys_to_record(
        dispatch,
        max_num_reqs=max_num_reqs,
        query_lens=query_lens,
        full_mode=CUDAGraphMode.FULL,
    )


@pytest.mark.parametrize("query_len", RUNGS)
def test_keys_are_the_rungs_that_hold_each_step(query_len: int) -> None:
    """Ladder read by hand, gaps and whole requests included."""
    expected = {
        GraphKey(reqs, rung, reqs * query_len, rung * query_len)
        for reqs, rung in RUNGS[query_len].items()
    }
    assert set(toy_keys(query_len)) == expected


@pytest.mark.parametrize("query_len", RUNGS)
@pytest.mark.parametrize("num_reqs", range(1, 9))
def test_every_step_that_dispatch_serves_has_its_key(
    num_reqs: int, query_len: int
) -> None:
    """Brute force: ask dispatch for the step, look for what it answers."""
    answer = dispatch(num_reqs, num_reqs * query_len, query_len, 0)
    assert answer.num_reqs is not None
    asked = GraphKey(num_reqs, answer.num_reqs, num_reqs * query_len, answer.num_tokens)
    assert toy_keys(query_len).count(asked) == 1


@pytest.mark.parametrize("query_len", RUNGS)
def test_steps_padded_for_a_larger_rank_have_their_keys(query_len: int) -> None:
    """Brute force: every pair of requests here and on the largest rank. None is among
    the keys of one rank alone.
    """
    own = toy_keys(query_len)
    answers = {
        GraphKey(here, answer.num_reqs or 0, here * query_len, answer.num_tokens)
        for most in range(1, 9)
        for here in range(1, most + 1)
        for answer in [dispatch(here, most * query_len, query_len, 0)]
    }
    padded = keys_padded_for_other_ranks(own, dispatch, CUDAGraphMode.FULL)
    assert {*own, *padded} == answers
    assert len(own) + len(padded) == len(answers)
    assert len(answers) == sum({*RUNGS[query_len].values()})


def test_steps_that_no_graph_serves_have_no_key() -> None:
    """Requests 9 and 10 are past the ladder's last rung."""
    assert toy_keys(1, max_num_reqs=10) == toy_keys(1)


def test_keys_of_all_query_lengths_come_largest_first() -> None:
    """The graph pool is sized by the first capture."""
    keys = toy_keys(1, 2, 3)
    sizes = [(key.num_tokens_after_padding, key.num_tokens) for key in keys]
    assert sizes == sorted(sizes, reverse=True)
    assert len(keys) == len(set(keys)) == 24


@pytest.mark.parametrize(("uniform", "padded"), [(None, 2), (1, 2), (2, None)])
def test_full_graph_of_mixed_query_lengths_is_refused_by_name(
    uniform: int | None, padded: int | None
) -> None:
    """A key would not fix such a step; the message shows what dispatch answered."""
    answer = Descriptor(CUDAGraphMode.FULL, 4, padded, uniform)

    def mixed(
        num_reqs: int,
        num_tokens: int,
        uniform_token_count: int | None,
        num_active_loras: int,
    ) -> Descriptor:
        return answer

    with pytest.raises(ValueError, match="mixed query lengths") as caught:
        keys_to_record(
            mixed, max_num_reqs=2, query_lens=[2], full_mode=CUDAGraphMode.FULL
        )
    assert str(answer) in str(caught.value)
    assert "cudagraph_mode FULL_DECODE_ONLY or" in str(caught.value)


@pytest.mark.parametrize(("key", "broken"), MALFORMED.values(), ids=MALFORMED)
def test_malformed_key_is_refused_with_every_broken_rule(
    key: GraphKey, broken: list[str]
) -> None:
    """One sentence that names the key and its values."""
    with pytest.raises(ValueError, match="GraphKey") as caught:
        require_valid_key(key)
    message = str(caught.value)
    assert message.startswith(repr(key))
    assert [rule for rule in broken if rule not in message] == []


@pytest.mark.parametrize("query_len", RUNGS)
def test_recorded_keys_are_well_formed(query_len: int) -> None:
    """What dispatch answers passes the rules, and tells its query length."""
    for key in toy_keys(query_len):
        require_valid_key(key)
        assert key.query_len == query_len
