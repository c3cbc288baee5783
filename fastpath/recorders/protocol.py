"""What every recorder offers: warm up, capture once, replay often.

A build is a callable without arguments whose device work is recorded and whose
host work runs once, at capture. The use of the protocol, in order:

    for build in builds: recorder.warm_up(build)      # lazy allocation, compilation
    recorder.synchronize()                            # once for all builds
    graph, metadata = recorder.capture(build)         # once a build
    graph.replay()                                    # every step

A capture records and does not execute: the memory that the build writes holds
its result only after the first replay.
"""

from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class RecordedGraph(Protocol):
    """The device work of one build, launched as a whole."""

    @property
    def num_nodes(self) -> int:
        """Number of recorded device operations; 0 needs no launch."""
        ...

    def replay(self) -> None:
        """Run the recorded operations on the memory they were captured with."""
        ...

    def release(self) -> None:
        """Give up the graph's memory; a replay afterwards is an error."""
        ...


class Recorder(Protocol):
    """Turns builds into recorded graphs."""

    @property
    def name(self) -> str:
        """Name of the recorder, for messages and reports."""
        ...

    def warm_up(self, build: Callable[[], object]) -> None:
        """Run `build` once, so that what is lazy happens before its capture."""
        ...

    def synchronize(self) -> None:
        """Wait for all warm-ups; once, before the first capture."""
        ...

    def capture(self, build: Callable[[], T]) -> tuple[RecordedGraph, T]:
        """Record `build` and return the graph with what `build` returned.

        Raises:
            CaptureError: the build does what a CUDA graph cannot record.
        """
        ...


class CaptureError(RuntimeError):
    """An operation that a CUDA graph cannot record.

    Attributes:
        operation: what was called, such as `Tensor.item` or `aten.copy_.default`.
        reason: why it cannot be recorded.
        location: `file:line` of the caller, the innermost frame outside torch,
            Triton, NumPy and the recorders.
    """

    def __init__(
        self, *, operation: str, reason: str, location: str, remedy: str
    ) -> None:
        super().__init__(
            f"{operation} at {location} cannot be recorded in a CUDA graph: "
            f"{reason}; {remedy}."
        )
        self.operation = operation
        self.reason = reason
        self.location = location
