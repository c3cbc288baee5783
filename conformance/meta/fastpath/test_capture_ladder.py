"""Which FULL graphs capture sizes make, read by hand."""

import pytest

from graphparity.fastpath.capture_ladder import CaptureLadder, Descriptor
from graphparity.reference.interface import CUDAGraphMode

GAPPED = (1, 2, 4, 8, 16, 24)

RUNGS: dict[tuple[tuple[int, ...], int, int], list[tuple[int, int]]] = {
    ((1, 2, 4, 8), 8, 1): [(1, 1), (2, 2), (4, 4), (8, 8)],
    # 1 and 2 are the same graph; 8 would be 9 tokens, more than any capture size.
    ((1, 2, 4, 8), 8, 3): [(1, 3), (1, 3), (2, 6)],
    (GAPPED, 12, 3): [(1, 3), (1, 3), (2, 6), (3, 9), (6, 18), (8, 24)],
    # 16 and 24 hold more requests than there are.
    (GAPPED, 12, 1): [(1, 1), (2, 2), (4, 4), (8, 8)],
    ((8, 1), 8, 1): [(1, 1), (8, 8)],
    ((8,), 8, 9): [],
}
"""Capture sizes, most requests and query length -> requests and tokens."""


@pytest.mark.parametrize("ladder", RUNGS)
def test_rungs_are_whole_requests(ladder: tuple[tuple[int, ...], int, int]) -> None:
    """Within the largest capture size and the most requests."""
    sizes, max_num_reqs, query_len = ladder
    actual = [*CaptureLadder(sizes, max_num_reqs).rungs(query_len)]
    assert actual == RUNGS[ladder]


def test_a_capture_size_without_graph_says_why() -> None:
    """In the numbers that rule it out."""
    too_many = CaptureLadder(GAPPED, 12).why_not_captured(16, 1)
    assert too_many == "it holds 16 requests, and there are 12"
    too_long = CaptureLadder((1, 8), 8).why_not_captured(8, 3)
    assert too_long.endswith("is 9 tokens, more than the largest capture size 8")
    assert CaptureLadder(GAPPED, 12).why_not_captured(24, 3) == ""


def test_what_no_full_graph_holds_runs_mixed_or_eagerly() -> None:
    """By the mode, up to the largest capture size."""
    piecewise = CaptureLadder(GAPPED, 30, CUDAGraphMode.PIECEWISE)
    assert piecewise.dispatch(9, 9, None, 0) == Descriptor(
        CUDAGraphMode.PIECEWISE, 16, None, None
    )
    assert piecewise.dispatch(25, 25, 1, 0) == Descriptor(
        CUDAGraphMode.NONE, 25, 25, None
    )
    full_only = CaptureLadder(GAPPED, 30)
    assert full_only.dispatch(9, 9, None, 0).cg_mode is CUDAGraphMode.NONE


@pytest.mark.parametrize(
    ("sizes", "max_num_reqs", "named"),
    [((), 8, r"capture_sizes \(\)"), ((0, 8), 8, "0, 8"), ((8,), 0, "max_num_reqs 0")],
)
def test_a_ladder_without_steps_is_refused(
    sizes: tuple[int, ...], max_num_reqs: int, named: str
) -> None:
    """With the value."""
    with pytest.raises(ValueError, match=named):
        CaptureLadder(sizes, max_num_reqs)
