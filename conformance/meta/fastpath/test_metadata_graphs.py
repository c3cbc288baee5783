"""Recordings by key: recorded in order, replayed, released, refused, counted."""

import logging
from collections.abc import Callable
from typing import TypeVar

import pytest
import torch

from graphparity.fastpath.graph_key import GraphKey
from graphparity.fastpath.metadata_graphs import (
    AttnMetadata,
    BuildFn,
    EagerReason,
    MetadataGraphs,
)
from graphparity.fastpath.recorders import EmulatedRecorder
from graphparity.fastpath.recorders.protocol import (
    NodeParameters,
    RecordedGraph,
    ReplayTimes,
    SideStream,
)

T = TypeVar("T")
LARGE, SMALL = GraphKey(4, 4, 4, 4), GraphKey(1, 1, 1, 1)
UNRECORDED = GraphKey(2, 2, 2, 2)


class FakeGraph:
    """A graph that notes what is done with it."""

    def __init__(self, num_nodes: int, calls: list[str]) -> None:
        self.num_nodes = num_nodes
        self._calls = calls

    def replay(self) -> None:
        """Note a replay."""
        self._calls.append("replay")

    def node_parameters(self) -> tuple[NodeParameters, ...]:
        """None: nobody judges this graph."""
        return ()

    def pool_spans(self) -> tuple[tuple[int, int], ...]:
        """None: it allocated nothing."""
        return ()

    def release(self) -> None:
        """Note a release."""
        self._calls.append("release")


def own(*keys: GraphKey) -> dict[GraphKey, GraphKey]:
    """Every key served by a recording of its own."""
    return {key: key for key in keys}


class FakeRecorder:
    """A recorder that runs builds and notes the order of its calls."""

    name = "fake"

    def __init__(self, num_nodes: int = 1) -> None:
        self.calls: list[str] = []
        self._num_nodes = num_nodes

    def warm_up(self, build: Callable[[], object]) -> None:
        """Run the build."""
        self.calls.append(f"warm_up {build()}")

    def synchronize(self) -> None:
        """Note a synchronisation."""
        self.calls.append("synchronize")

    def capture(self, build: Callable[[], T]) -> tuple[FakeGraph, T]:
        """Run the build, and pretend to have recorded it."""
        built = build()
        self.calls.append(f"capture {built}")
        return FakeGraph(self._num_nodes, self.calls), built

    def side_stream(self, index: int) -> SideStream:
        """None: nothing forks here."""
        raise NotImplementedError(index)

    def replay_times(self, graph: RecordedGraph) -> ReplayTimes | None:
        """None."""
        return None


class Doubling:
    """Builds ``out = 2 * x`` on device memory, recorded by the emulated recorder."""

    def __init__(self) -> None:
        self.x, self.out = torch.arange(4), torch.zeros(4, dtype=torch.int64)
        device = torch.device("cpu:0")
        self.graphs = MetadataGraphs(EmulatedRecorder(device, [self.x, self.out]))

    def stage(self, key: GraphKey) -> BuildFn:
        """The build of the first ``num_reqs`` rows."""

        def build() -> AttnMetadata:
            torch.mul(self.x[: key.num_reqs], 2, out=self.out[: key.num_reqs])
            return {"layer": self.out[: key.num_reqs]}

        return build

    def reading(self, key: GraphKey) -> BuildFn:
        """A build that reads device memory on the host where ``key`` is large."""

        def build() -> AttnMetadata:
            scale = int(self.x[3].item()) if key == LARGE else 2
            torch.mul(self.x[: key.num_reqs], scale, out=self.out[: key.num_reqs])
            return {}

        return build


def by_name(key: GraphKey) -> BuildFn:
    """A build that tells whose it is."""
    return lambda: {"reqs": key.num_reqs}


def test_warm_ups_precede_one_synchronisation_and_captures_keep_the_order() -> None:
    """One wait serves all keys; they are captured as given, largest first."""
    recorder = FakeRecorder()
    MetadataGraphs(recorder).record(own(LARGE, SMALL), by_name)
    assert recorder.calls == [
        "warm_up {'reqs': 4}",
        "warm_up {'reqs': 1}",
        "synchronize",
        "capture {'reqs': 4}",
        "capture {'reqs': 1}",
    ]


def test_each_run_of_a_build_is_staged_afresh() -> None:
    """A capture follows other keys' warm-ups, which overwrote the staged inputs."""
    staged: list[GraphKey] = []

    def stage(key: GraphKey) -> BuildFn:
        staged.append(key)
        return dict

    MetadataGraphs(FakeRecorder()).record(own(LARGE, SMALL), stage)
    assert staged == [LARGE, SMALL, LARGE, SMALL]


def test_replay_refreshes_buffers_and_returns_the_captured_metadata() -> None:
    """The same object each time; its tensors hold what the build would compute."""
    doubling = Doubling()
    doubling.graphs.record(own(LARGE, SMALL), doubling.stage)
    captured = doubling.graphs.recordings[LARGE].attn_metadata
    for start in (10, 20):
        doubling.x.copy_(torch.arange(start, start + 4))
        assert doubling.graphs.replay(LARGE) is captured
        assert doubling.out.tolist() == [2 * (start + row) for row in range(4)]
    assert doubling.graphs.num_replayed == 2
    assert doubling.graphs.eager_steps.total() == 0


def test_build_without_device_work_needs_no_launch() -> None:
    """Its metadata is returned, counted as a replay, and no graph is run."""
    recorder = FakeRecorder(num_nodes=0)
    graphs = MetadataGraphs(recorder)
    graphs.record(own(SMALL), by_name)
    assert graphs.recordings[SMALL].launch is None
    assert graphs.replay(SMALL) == {"reqs": 1}
    assert "replay" not in recorder.calls
    assert graphs.num_replayed == 1


def test_emulated_build_without_device_work_needs_no_launch() -> None:
    """Host work alone leaves no node."""
    graphs = Doubling().graphs
    graphs.record(own(SMALL), by_name)
    assert graphs.recordings[SMALL].graph.num_nodes == 0
    assert graphs.recordings[SMALL].launch is None


def test_build_with_device_work_is_launched() -> None:
    """One launch a replay."""
    recorder = FakeRecorder()
    graphs = MetadataGraphs(recorder)
    graphs.record(own(SMALL), by_name)
    graphs.replay(SMALL)
    assert recorder.calls[-1] == "replay"
    assert recorder.calls.count("replay") == 1


def test_refused_key_stays_eager_and_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Counted under its own reason, named in the log, other keys recorded."""
    doubling = Doubling()
    with caplog.at_level(logging.WARNING):
        doubling.graphs.record(own(LARGE, SMALL), doubling.reading)
        assert doubling.graphs.replay(LARGE) is None
        doubling.graphs.count_unrecorded(LARGE)
    assert list(doubling.graphs.recordings) == [SMALL]
    assert list(doubling.graphs.refusals) == [LARGE]
    assert "item" in str(doubling.graphs.refusals[LARGE])
    (message,) = caplog.messages
    assert str(LARGE) in message
    assert str(doubling.graphs.refusals[LARGE]) in message
    assert doubling.graphs.eager_steps == {EagerReason.CAPTURE_REFUSED: 1}
    assert doubling.graphs.num_replayed == 0


def test_missing_recording_warns_once_and_counts_each_step(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The one reason that deserves a warning, but not one a step."""
    graphs = MetadataGraphs(FakeRecorder())
    graphs.record(own(LARGE), by_name)
    with caplog.at_level(logging.WARNING):
        assert graphs.replay(UNRECORDED) is None
        for _ in range(3):
            graphs.count_unrecorded(UNRECORDED)
    assert len(caplog.messages) == 1
    assert str(UNRECORDED) in caplog.messages[0]
    assert graphs.eager_steps == {EagerReason.MISSING_RECORDING: 3}


@pytest.mark.parametrize("reason", EagerReason)
def test_eager_steps_are_counted_by_reason(reason: EagerReason) -> None:
    """Each under its own, and none as a replay."""
    graphs = MetadataGraphs(FakeRecorder())
    graphs.count_eager(reason)
    assert graphs.eager_steps == {reason: 1}
    assert graphs.num_replayed == 0


def test_released_recordings_are_missing_until_recorded_again() -> None:
    """Graphs are given up; recording again serves the key by replay."""
    doubling = Doubling()
    doubling.graphs.record(own(SMALL), doubling.stage)
    released = doubling.graphs.recordings[SMALL].graph
    doubling.graphs.release()
    assert doubling.graphs.recordings == {}
    assert doubling.graphs.replay(SMALL) is None
    with pytest.raises(RuntimeError, match="released"):
        released.replay()
    doubling.graphs.record(own(SMALL), doubling.stage)
    assert doubling.graphs.replay(SMALL) is not None
    assert doubling.graphs.num_replayed == 1


def test_recording_again_drops_former_recordings_and_refusals() -> None:
    """No graph of an earlier KV cache is left to be replayed."""
    doubling = Doubling()
    doubling.graphs.record(own(LARGE, SMALL), doubling.reading)
    former = doubling.graphs.recordings[SMALL].graph
    doubling.graphs.record(own(LARGE), doubling.stage)
    assert list(doubling.graphs.recordings) == [LARGE]
    assert doubling.graphs.refusals == {}
    with pytest.raises(RuntimeError, match="released"):
        former.replay()


@pytest.mark.parametrize("name", ["recordings", "refusals"])
def test_recordings_and_refusals_are_read_only(name: str) -> None:
    """Only ``record`` and ``release`` change them."""
    view = getattr(MetadataGraphs(FakeRecorder()), name)
    with pytest.raises(TypeError, match="does not support item assignment"):
        view[SMALL] = None


def test_keys_that_build_alike_share_one_recording() -> None:
    """Captured once, replayed under each of them, released once."""
    doubling = Doubling()
    graphs = doubling.graphs
    graphs.record({LARGE: LARGE, SMALL: LARGE}, doubling.stage)
    assert list(graphs.recordings) == [LARGE, SMALL]
    assert graphs.num_graphs == 1
    assert graphs.replay(SMALL) is graphs.replay(LARGE) is not None
    assert graphs.num_replayed == 2
    graphs.release()
    assert graphs.num_graphs == 0


def test_a_refusal_holds_for_all_keys_that_share() -> None:
    """None of them is recorded, and each is counted as refused."""
    doubling = Doubling()
    graphs = doubling.graphs
    graphs.record({LARGE: LARGE, SMALL: LARGE}, doubling.reading)
    assert graphs.recordings == {}
    assert list(graphs.refusals) == [LARGE, SMALL]
    graphs.count_unrecorded(SMALL)
    assert graphs.eager_steps == {EagerReason.CAPTURE_REFUSED: 1}


def test_a_step_padded_for_a_larger_rank_has_a_count_of_its_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is no missing recording, of which a step would warn."""
    doubling = Doubling()
    graphs = doubling.graphs
    graphs.record(own(LARGE), doubling.stage, left_eager=[SMALL])
    graphs.count_unrecorded(SMALL)
    assert graphs.eager_steps == {EagerReason.LARGER_RANK: 1}
    assert caplog.records == []
    graphs.release()
    graphs.count_unrecorded(SMALL)
    assert graphs.eager_steps[EagerReason.MISSING_RECORDING] == 1


def test_withdrawn_keys_are_refused_and_their_graph_released() -> None:
    """Unless the graph serves another key."""
    recorder = FakeRecorder()
    graphs = MetadataGraphs(recorder)
    other = GraphKey(3, 4, 3, 4)
    graphs.record({LARGE: LARGE, other: LARGE}, by_name)
    error = ValueError("it is read on the host")
    graphs.withdraw([other], error)
    assert "release" not in recorder.calls
    assert graphs.refusals == {other: error}
    assert graphs.replay(other) is None
    graphs.count_unrecorded(other)
    assert graphs.eager_steps == {EagerReason.CAPTURE_REFUSED: 1}
    graphs.withdraw([LARGE], error)
    assert recorder.calls[-1] == "release"
    assert not graphs.recordings
