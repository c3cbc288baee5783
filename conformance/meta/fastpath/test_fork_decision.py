"""Builds fork where that was measured to pay, and the figures are kept."""

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import torch

from graphparity.conformance.meta.fastpath.test_metadata_graphs import FakeGraph
from graphparity.fastpath.fork_decision import (
    Candidate,
    ForkDecision,
    Forking,
    decide,
    pays,
)
from graphparity.fastpath.forked_build import Branches
from graphparity.fastpath.metadata_graphs import BuildFn
from graphparity.fastpath.recorders import EmulatedRecorder
from graphparity.fastpath.recorders.protocol import (
    CaptureError,
    RecordedGraph,
    ReplayTimes,
    SideStream,
)

T = TypeVar("T")

FOUR: Branches = ((0,), (1,), (2,), (3,))
WHOLE: Branches = ((0, 1, 2, 3),)
HALVES: Branches = ((0, 3), (1, 2))
ALONE = {((0,),): 5.0, ((1,),): 4.0, ((2,),): 3.0, ((3,),): 2.0}
"""GPU microseconds of each branch alone."""


class TimedGraph(FakeGraph):
    """A graph that knows what it was captured of."""

    def __init__(self, branches: Branches, num_nodes: int) -> None:
        super().__init__(num_nodes, [])
        self.branches = branches


class TimedRecorder:
    """Tells the times that it was given; a build returns its branches."""

    name = "timed"

    def __init__(self, times: dict[Branches, ReplayTimes], num_nodes: int = 1) -> None:
        self.captured: list[TimedGraph] = []
        self._times, self._num_nodes = times, num_nodes
        self._warm: list[Any] = []

    def warm_up(self, build: Callable[[], object]) -> None:
        """Note the build."""
        self._warm.append(build())

    def synchronize(self) -> None:
        """Nothing is to be waited for."""

    def capture(self, build: Callable[[], T]) -> tuple[TimedGraph, T]:
        """What was warmed up."""
        built: Any = build()
        assert built["branches"] in [it["branches"] for it in self._warm]
        self.captured.append(TimedGraph(built["branches"], self._num_nodes))
        return self.captured[-1], built

    def side_stream(self, index: int) -> SideStream:
        """None is needed."""
        raise NotImplementedError(index)

    def replay_times(self, graph: RecordedGraph) -> ReplayTimes | None:
        """As given."""
        assert isinstance(graph, TimedGraph)
        return self._times[graph.branches]


def build_of(branches: Branches) -> BuildFn:
    """A build that tells its branches."""
    return lambda: {"branches": branches}


def times(
    whole: tuple[float, float],
    halves: tuple[float, float],
    four: tuple[float, float],
) -> dict[Branches, ReplayTimes]:
    """(host, GPU) microseconds of each candidate."""
    alone = {it: ReplayTimes(4.0, device_us) for it, device_us in ALONE.items()}
    named = {WHOLE: whole, HALVES: halves, FOUR: four}
    return alone | {it: ReplayTimes(*pair) for it, pair in named.items()}


def decided(given: dict[Branches, ReplayTimes]) -> ForkDecision:
    """The decision over four branches, every graph given up."""
    recorder = TimedRecorder(given)
    decision = decide(Forking.MEASURED, recorder, FOUR, build_of)
    assert all(graph._calls == ["release"] for graph in recorder.captured)
    return decision


RULE = {
    "saves more than twice what it costs": ((5.2, 13.8), (6.5, 7.9), True),
    "saves less than twice what it costs": ((5.2, 13.8), (8.5, 9.3), False),
    "saves less than timers tell": ((5.2, 13.8), (5.2, 12.9), False),
    "takes longer on the GPU": ((5.2, 7.0), (5.2, 8.0), False),
    "is launched faster": ((5.2, 13.8), (4.0, 12.0), True),
    "is launched faster and takes longer": ((9.2, 13.8), (4.0, 14.0), False),
}


@pytest.mark.parametrize("case", RULE)
def test_the_gpu_s_time_must_be_worth_the_host_s(case: str) -> None:
    """(host, GPU) microseconds, serial and forked; the first two were measured."""
    serial_times, forked_times, expected = RULE[case]
    assert pays(ReplayTimes(*serial_times), ReplayTimes(*forked_times)) is expected


def test_two_balanced_branches_are_tried_beside_all() -> None:
    """As measured on an H200: two pay, four do not."""
    decision = decided(times((5.2, 13.8), (6.5, 7.9), (8.5, 9.3)))
    assert decision == ForkDecision(
        HALVES,
        "measured to pay",
        ReplayTimes(5.2, 13.8),
        (
            Candidate(HALVES, ReplayTimes(6.5, 7.9)),
            Candidate(FOUR, ReplayTimes(8.5, 9.3)),
        ),
    )


def test_all_branches_are_taken_where_they_pay_most() -> None:
    """The launch costs as much."""
    decision = decided(times((5.2, 13.8), (6.5, 7.9), (6.5, 5.0)))
    assert decision.branches == decision.tried[0].branches == FOUR


def test_what_does_not_pay_is_recorded_serially() -> None:
    """With the figures of the best candidate."""
    decision = decided(times((5.2, 6.0), (6.5, 5.5), (8.5, 5.0)))
    assert (decision.branches, decision.reason) == (WHOLE, "measured not to pay")
    assert decision.tried[0] == Candidate(HALVES, ReplayTimes(6.5, 5.5))


def test_a_build_without_device_work_is_not_timed() -> None:
    """It is not launched."""
    recorder = TimedRecorder({}, num_nodes=0)
    decision = decide(Forking.MEASURED, recorder, FOUR, build_of)
    assert decision == ForkDecision(WHOLE, "the build has no device work")


def test_nothing_is_measured_where_nothing_is_to_be_decided() -> None:
    """Nothing is staged, even."""

    def stage(branches: Branches) -> BuildFn:
        raise AssertionError(branches)

    recorder = TimedRecorder({})
    always = decide(Forking.ALWAYS, recorder, FOUR, stage)
    assert always == ForkDecision(FOUR, "asked for")
    alone = decide(Forking.ALWAYS, recorder, ((0, 1),), stage)
    assert alone == ForkDecision(((0, 1),), "there can be one branch at most")


def test_nothing_forks_under_a_recorder_without_times() -> None:
    """The emulated one, unless it is asked for."""
    x = torch.zeros(2)
    recorder = EmulatedRecorder(torch.device("cpu:0"), [x])
    build = lambda branches: lambda: {"layer": x.add_(1)}  # noqa: E731, of two steps
    decision = decide(Forking.MEASURED, recorder, FOUR, build)
    assert decision == ForkDecision(WHOLE, "recorder 'emulated' tells no times")


def test_a_build_that_cannot_be_captured_does_not_fork() -> None:
    """Its error is the reason; every key has its own, once it is recorded."""

    class Refusing(TimedRecorder):
        def capture(self, build: Callable[[], T]) -> tuple[TimedGraph, T]:
            """Refuse it."""
            raise CaptureError(
                operation="Tensor.item", reason="it reads", location="a:1", remedy="no"
            )

    decision = decide(Forking.MEASURED, Refusing({}), FOUR, build_of)
    assert decision.branches == WHOLE
    assert "not measured: Tensor.item at a:1" in decision.reason
