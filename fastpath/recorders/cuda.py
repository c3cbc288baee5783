"""CUDA graphs behind the recorder protocol.

Builds are warmed up and captured on one stream of the recorder's own, so that
per-stream state (cuBLAS, DeepGEMM) exists before a capture, and allocate from pools
of the recorder's own, apart from the FULL forward graphs'. A replay is one launch on
the current stream. Side streams are kept from the first warm-up on.
"""

import importlib.util
from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar

import torch

from graphparity.fastpath.recorders.call_sites import raised_site
from graphparity.fastpath.recorders.cold_kernels import refused_compilation
from graphparity.fastpath.recorders.cuda_nodes import CudaNode, nodes_of
from graphparity.fastpath.recorders.cuda_streams import CudaSideStream
from graphparity.fastpath.recorders.garbage_collection import no_garbage_collection
from graphparity.fastpath.recorders.protocol import (
    CaptureError,
    NodeParameters,
    RecordedGraph,
    ReplayTimes,
)
from graphparity.fastpath.recorders.replay_times import replay_times

T = TypeVar("T")

GraphPoolId = Any
"""What ``torch.cuda.graph_pool_handle`` returns; torch's type for it is private."""


def has_cuda_bindings() -> bool:
    """Whether ``cuda-bindings`` is installed."""
    try:
        return importlib.util.find_spec("cuda.bindings") is not None
    except ModuleNotFoundError:  # not even the package that it is in
        return False


def require_cuda() -> None:
    """Raise ``RuntimeError`` where graphs cannot be captured or listed."""
    if not torch.cuda.is_available():
        raise RuntimeError(
            "recorder 'cuda' found no CUDA GPU (torch.cuda.is_available() is False): "
            "run on a machine with one, or use the recorder 'emulated'."
        )
    if not has_cuda_bindings():
        raise RuntimeError(
            "recorder 'cuda' lists a graph's nodes through cuda-bindings, which is not "
            "installed: pip install cuda-bindings."
        )


class CudaBuildGraph:
    """One captured build; ``replay`` is the launch itself."""

    def __init__(self, graph: torch.cuda.CUDAGraph, pool: GraphPoolId) -> None:
        self._graph: torch.cuda.CUDAGraph | None = graph
        self._pool = pool
        self._nodes = nodes_of(graph)
        self.replay: Callable[[], None] = graph.replay

    @property
    def nodes(self) -> tuple[CudaNode, ...]:
        """The recorded device operations, in the driver's order."""
        return self._nodes

    @property
    def num_nodes(self) -> int:
        """Recorded device operations; 0 needs no launch."""
        return len(self._nodes)

    def node_parameters(self) -> tuple[NodeParameters, ...]:
        """The parameters of every node; bytes, as only a kernel knows their meaning."""
        if not self._nodes:
            return ()
        spans = [_span(segment) for segment in self._segments]
        return tuple(node.parameters(spans) for node in self._nodes)

    def pool_spans(self) -> tuple[tuple[int, int], ...]:
        """The address ranges of the graph pool, which other graphs may share."""
        return tuple(
            _span(segment)
            for segment in self._segments
            if tuple(segment["segment_pool_id"]) == tuple(self._pool)
        )

    @cached_property
    def _segments(self) -> list[dict[str, Any]]:
        """The allocator's segments when they were first asked for: whatever the graph
        points to was there at its capture, and listing them takes milliseconds.
        """
        segments: list[dict[str, Any]] = torch.cuda.memory_snapshot()
        return segments

    def describe(self) -> list[str]:
        """One line for each node."""
        return [node.describe() for node in self._nodes]

    def release(self) -> None:
        """Free the graph: no node is left; a replay raises ``RuntimeError``."""
        if self._graph is not None:
            self._graph.reset()
            self._graph, self.replay, self._nodes = None, _refuse_replay, ()
            vars(self).pop("_segments", None)


class CudaRecorder:
    """Captures builds into ``torch.cuda.CUDAGraph``, in graph pools of its own.

    The pool of the forward graphs is never captured into: PyTorch (2.11) refuses a
    pool for good once a capture in it was invalidated, which a build that reads a
    device value does.

    Raises:
        RuntimeError: there is no CUDA GPU, or cuda-bindings is not installed.
    """

    name = "cuda"

    def __init__(self) -> None:
        require_cuda()
        self._stream = torch.cuda.Stream()
        self._side_streams: dict[int, CudaSideStream] = {}
        self._take_new_pool()

    def warm_up(self, build: Callable[[], object]) -> None:
        """Run ``build`` once on the capture stream."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            build()
        torch.cuda.current_stream().wait_stream(self._stream)

    def synchronize(self) -> None:
        """Wait for the warm-ups: nothing they started may run into a capture."""
        torch.cuda.synchronize()

    def capture(self, build: Callable[[], T]) -> tuple[CudaBuildGraph, T]:
        """Record ``build``; nothing is executed.

        Raises:
            CaptureError: the build does what a CUDA graph cannot record.
        """
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        self._stream.wait_stream(torch.cuda.current_stream())
        with no_garbage_collection(), torch.cuda.stream(self._stream):
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            built = self._run(build, graph)
        graph.instantiate()
        return CudaBuildGraph(graph, self._pool), built

    def side_stream(self, index: int) -> CudaSideStream:
        """The side stream of that number, made when it is first asked for."""
        if index not in self._side_streams:
            self._side_streams[index] = CudaSideStream()
        return self._side_streams[index]

    def replay_times(self, graph: RecordedGraph) -> ReplayTimes | None:
        """The times of a graph's replays, which overwrite what it writes."""
        return replay_times(graph.replay)

    def _take_new_pool(self) -> None:
        """Capture into a new pool from now on.

        PyTorch drops a pool with its last graph and refuses to capture into it again,
        so one graph stays: recording anew after a release must work.
        """
        self._pool: GraphPoolId = torch.cuda.graph_pool_handle()
        self._pool_anchor = self._anchor()

    def _anchor(self) -> torch.cuda.CUDAGraph:
        """A graph of one small kernel in the recorder's pool."""
        buffer = torch.zeros(1, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with no_garbage_collection(), torch.cuda.stream(self._stream):
            graph.capture_begin(pool=self._pool)
            buffer.add_(1)
            graph.capture_end()
        return graph

    def _run(self, build: Callable[[], T], graph: torch.cuda.CUDAGraph) -> T:
        """Run ``build`` and end its capture, whatever happens."""
        try:
            with refused_compilation():
                built = build()
        except Exception as error:
            self._abandon(graph)
            raise _refusal(error) from error
        try:
            graph.capture_end()
        except RuntimeError as error:
            self._leave_pool()
            raise _refusal(error) from error
        return built

    def _abandon(self, graph: torch.cuda.CUDAGraph) -> None:
        """End a capture that failed, so that the stream can be used again."""
        try:
            graph.capture_end()
        except RuntimeError:
            # Ending an invalidated capture reports the error that invalidated it,
            # which the caller is about to raise.
            self._leave_pool()

    def _leave_pool(self) -> None:
        """Give up a pool in which a capture was invalidated.

        PyTorch's allocator (2.11) still asks the dead capture about every allocation;
        no public call ends that.
        """
        torch.cuda.synchronize()
        torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), self._pool)
        self._take_new_pool()


def _span(segment: dict[str, Any]) -> tuple[int, int]:
    """The addresses of a segment of the allocator: the first, and the one after."""
    return segment["address"], segment["address"] + segment["total_size"]


def _refuse_replay() -> None:
    raise RuntimeError(
        "this CUDA graph was released, so it cannot be replayed; capture it again."
    )


def _refusal(error: Exception) -> CaptureError:
    """The refusal that stands for an error raised inside a capture."""
    if isinstance(error, CaptureError):
        return error
    location, source_line = raised_site(error)
    first_line = next(iter(str(error).strip().splitlines()), "")
    return CaptureError(
        operation=f"`{source_line}`",
        reason=f"{type(error).__name__}: {first_line}".removesuffix(": "),
        location=location,
        remedy="keep the builder's device work free of host reads and host copies",
    )
