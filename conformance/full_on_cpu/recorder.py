"""The emulated recorder, with its replays counted apart from the plug-in."""

from collections.abc import Callable
from typing import Any

import torch

from graphparity.conformance.full_on_cpu.notes import NOTES
from graphparity.conformance.vllm_on_cpu.memory import device_memory, rotating_memory
from graphparity.fastpath.recorders import (
    EmulatedRecorder,
    RecordedGraph,
    ReplayTimes,
    SideStream,
)


class MeteredRecorder:
    """Records as the emulated recorder, with a cold JIT cache; replays for requests
    are noted.

    Args:
        runner: whose device memory it records over.
    """

    name = "emulated"

    def __init__(self, runner: Any) -> None:
        state = runner.model_state
        self._recorder = EmulatedRecorder(
            torch.device("cpu:0"),
            device_memory(runner, state).values(),
            rotating_memory=rotating_memory(runner, state).values(),
            starts_cold=True,
        )

    def warm_up(self, build: Callable[[], object]) -> None:
        """As the emulated recorder."""
        self._recorder.warm_up(build)

    def synchronize(self) -> None:
        """As the emulated recorder."""
        self._recorder.synchronize()

    def capture(self, build: Callable[[], Any]) -> tuple[Any, Any]:
        """As the emulated recorder; the graph's replays are counted."""
        graph, result = self._recorder.capture(build)
        return _MeteredGraph(graph), result

    def side_stream(self, index: int) -> SideStream:
        """As the emulated recorder."""
        return self._recorder.side_stream(index)

    def replay_times(self, graph: RecordedGraph) -> ReplayTimes | None:
        """As the emulated recorder."""
        return self._recorder.replay_times(graph)


class _MeteredGraph:
    def __init__(self, graph: Any) -> None:
        self._graph = graph

    def replay(self) -> None:
        NOTES.recorder_replays += NOTES.is_serving
        self._graph.replay()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._graph, name)
