"""The recordings a group is judged by, all kept alive until its verdict.

A graph that is gone gives its memory to the next one; kept alive, each has a pool of
its own, and memory that a builder carries from one capture to another shows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from graphparity.fastpath.group_build import GroupBuild
from graphparity.fastpath.proving.group_memory import Span, poison
from graphparity.fastpath.proving.leaves import Leaf, leaves
from graphparity.fastpath.proving.node_checks import CapturedNodes, captured_nodes
from graphparity.fastpath.recorders.protocol import RecordedGraph, Recorder
from graphparity.fastpath.runtime_batch import StepRows


@dataclass(frozen=True)
class Capture:
    """One capture of a staged build."""

    rows: StepRows
    staged_build: Callable[[], object]
    graph: RecordedGraph
    metadata: Any
    leaves: dict[str, Leaf]
    """As they were when captured: places count, contents do not."""
    captured: CapturedNodes


class Recordings:
    """Stages and captures the builds of one group."""

    def __init__(
        self, build: GroupBuild, recorder: Recorder, poison_bound: int
    ) -> None:
        self._build = build
        self._recorder = recorder
        self._poison_bound = poison_bound
        self._alive: list[Capture] = []

    @property
    def pools(self) -> list[Span]:
        """The memory of every capture alive."""
        return [span for capture in self._alive for span in capture.captured.pool]

    def stage(self, rows: StepRows) -> Callable[[], object]:
        """Poison the outputs, then write a step's inputs; the poison is another for
        every seed, so contents that nobody writes differ between batches.
        """
        poison(self._build.outputs, rows.seed, self._poison_bound)
        return self._build.stage(rows)

    def warm_up(self, rows: StepRows) -> None:
        """Run the step's build once, as before every capture."""
        self._recorder.warm_up(self.stage(rows))
        self._recorder.synchronize()

    def capture(self, rows: StepRows, staged_build: Callable[[], object]) -> Capture:
        """Record a staged build.

        Raises:
            CaptureError: the build does what a CUDA graph cannot record.
        """
        graph, metadata = self._recorder.capture(staged_build)
        made = leaves(metadata)
        nodes = captured_nodes(graph)
        capture = Capture(rows, staged_build, graph, metadata, made, nodes)
        self._alive.append(capture)
        return capture

    def release(self) -> None:
        """Release every graph."""
        for capture in self._alive:
            capture.graph.release()
        self._alive.clear()
