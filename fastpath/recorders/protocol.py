"""What every recorder offers: warm up, capture once, replay often.

A build is a callable without arguments whose device work is recorded and whose
host work runs once, at capture. The use of the protocol, in order:

    for build in builds: recorder.warm_up(build)      # lazy allocation, compilation
    recorder.synchronize()                            # once for all builds
    graph, metadata = recorder.capture(build)         # once a build
    graph.replay()                                    # every step

A capture records and does not execute: the memory that the build writes holds
its result only after the first replay.

A build may fork: side streams run beside the stream that the recorder warms up and
captures on. They are the same streams in both, so that what libraries keep by stream
exists before a capture.

    stream = recorder.side_stream(0)
    stream.fork()                                     # follows the work so far
    with stream.use(): ...                            # work of a branch
    stream.join()                                     # what comes next follows it
"""

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class NodeParameters:
    """What one recorded operation was given, and will be given at every replay."""

    name: str
    kind: str
    """"kernel", "copy", "fill" or "op" for work on the device; "host-copy" for a copy
    of host memory to the device; "host", "allocation" or "free" where a recorder
    records such.
    """
    location: str
    """`file:line` of the caller; "" where the recorder cannot know it."""
    values: tuple[tuple[str, Hashable], ...]
    """Name -> value of every parameter but the addresses: scalars, the shapes and
    strides of tensors, the launch grid. On CUDA the bytes of an argument, by offset.
    A "host-copy" has "nbytes" among them.
    """
    pointers: tuple[tuple[str, int], ...]
    """Name -> address; where a recorder sees bytes alone, those that fall in device
    memory. A "host-copy" has "source" among them.
    """
    written: frozenset[str] = frozenset()
    """Names of the pointers known to be written; empty where that is unknown."""


class ReplayTimes(NamedTuple):
    """Medians of many replays, in microseconds."""

    host_us: float
    """Of the host, to launch one."""
    device_us: float
    """Of the device, to run one, launched before the last one has ended."""


class RecordedGraph(Protocol):
    """The device work of one build, launched as a whole."""

    @property
    def num_nodes(self) -> int:
        """Number of recorded device operations; 0 needs no launch."""
        ...

    def replay(self) -> None:
        """Run the recorded operations on the memory they were captured with."""
        ...

    def node_parameters(self) -> Sequence[NodeParameters]:
        """The parameters of every node, in recording order."""
        ...

    def pool_spans(self) -> Sequence[tuple[int, int]]:
        """The address ranges, first and past the last, that the capture allocated."""
        ...

    def release(self) -> None:
        """Give up the graph's memory; a replay afterwards is an error."""
        ...


class SideStream(Protocol):
    """A stream beside the one that a recorder warms up and captures on."""

    def fork(self) -> None:
        """Let the stream wait for what the current stream was given so far; in a
        capture that makes it a part of it.
        """
        ...

    def use(self) -> AbstractContextManager[None]:
        """Give device work to this stream, until the block ends.

        Raises:
            CaptureError: it did not fork within the capture in progress.
        """
        ...

    def join(self) -> None:
        """Let the current stream wait for what this one was given so far; a capture
        that ends before is refused.
        """
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

    def side_stream(self, index: int) -> SideStream:
        """The side stream of that number, from 0; the same one at every call."""
        ...

    def replay_times(self, graph: RecordedGraph) -> ReplayTimes | None:
        """How long replays of a graph of this recorder take, measured by running
        some hundreds; None if it has no device whose time could be told.
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
