"""CUDA graphs emulated on CPU tensors, for any torch code and interpreted Triton.

What a CUDA graph fixes is fixed here: addresses, shapes, strides, host scalars,
launch grids. What a capture cannot record is refused with the caller's line.
What a capture does not do, execute, is undone.

Not modelled:
- reuse of pool memory inside one graph and between graphs, beyond the poison;
- races within one operation: those of forked branches run one at a time, in an order
  that a GPU might take, not in the one in which they were called;
- when an asynchronous copy reads its pinned source: here it is read in order;
- NumPy aliases of device memory made before the capture, and raw addresses;
- `torch.to_dlpack` and storage objects, which no mode sees; `Tensor.__dlpack__` is;
- stores of interpreted kernels outside their buffers;
- compilation of a kernel during a capture, unless the recorder starts cold;
- writes that an operation's schema hides, such as `native_batch_norm`'s statistics:
  they are not undone after a capture;
- operations that check values on the CPU only, such as `one_hot`, are refused;
- a capture runs each operation once, so inputs must be valid while recording;
- mixed devices that eager CUDA refuses anyway (`torch.cat` of host scalars).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, TypeVar

import torch

from graphparity.fastpath.recorders.capture_modes import FunctionMode, OperationMode
from graphparity.fastpath.recorders.capture_session import CaptureSession
from graphparity.fastpath.recorders.cold_kernels import WarmKernels
from graphparity.fastpath.recorders.device_memory import DeviceMemory, GraphPool
from graphparity.fastpath.recorders.emulated_streams import EmulatedSideStream
from graphparity.fastpath.recorders.kernel_launches import (
    noted_launches,
    recorded_launches,
)
from graphparity.fastpath.recorders.nodes import Node
from graphparity.fastpath.recorders.protocol import (
    NodeParameters,
    RecordedGraph,
    ReplayTimes,
)
from graphparity.fastpath.recorders.refusals import (
    NESTED,
    REPLAYS,
    SYNCHRONIZES,
    UNJOINED,
    Refusal,
)

T = TypeVar("T")

# 0x7f repeated is a huge number in every integer and floating-point type but float16
# and float8, where it is not a number: it shows in sums, and is no common sentinel.
POISON_BYTE = 0x7F


class EmulatedGraph:
    """Recorded operations on CPU tensors, run again in order by `replay`.

    Args:
        nodes: the operations, as they were recorded.
        pool: what their capture allocated.
        poison_byte: fills those allocations before each replay.
        order: the positions in `nodes` in the order of a replay; None if that is
            theirs.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        pool: GraphPool,
        poison_byte: int = POISON_BYTE,
        order: Sequence[int] | None = None,
    ) -> None:
        self._nodes: tuple[Node, ...] | None = tuple(nodes)
        self._order = tuple(range(len(nodes)) if order is None else order)
        self._runs = tuple(nodes[position].run for position in self._order)
        self._pool: GraphPool | None = pool
        self._poison_byte = poison_byte

    def __repr__(self) -> str:
        if self._nodes is None:
            return "<EmulatedGraph, released>"
        return "\n".join(
            [f"<EmulatedGraph of {len(self._nodes)} nodes>", *self.describe()]
        )

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The recorded operations in order; none after `release`."""
        return self._nodes or ()

    @property
    def num_nodes(self) -> int:
        """Number of recorded operations."""
        return len(self.nodes)

    @property
    def order(self) -> tuple[int, ...]:
        """The positions in `nodes` in the order of a replay."""
        return self._order

    def describe(self) -> list[str]:
        """Return one line for each node: index, kind, name and the caller's line."""
        return [node.describe() for node in self.nodes]

    def node_parameters(self) -> list[NodeParameters]:
        """Return the parameters of every node, in order; none after `release`."""
        return [node.parameters for node in self.nodes]

    def pool_spans(self) -> list[tuple[int, int]]:
        """Return the address ranges of the graph's allocations, in their order."""
        return [] if self._pool is None else self._pool.spans()

    def replay(self) -> None:
        """Poison the graph's own allocations, then run every node.

        Raises:
            RuntimeError: the graph was released.
            CaptureError: a capture is in progress.
        """
        _refuse_in_capture("EmulatedGraph.replay", REPLAYS)
        if self._pool is None:
            raise RuntimeError(
                "this EmulatedGraph was released and cannot replay; capture it again."
            )
        with torch.no_grad():
            self._pool.poison(self._poison_byte)
            for run in self._runs:
                run()

    def without(self, index: int, *, poison_byte: int | None = None) -> "EmulatedGraph":
        """Return a graph on the same memory that lacks the node at position `index`.

        Args:
            index: the node's position in `nodes`.
            poison_byte: fills the allocations before each replay; None keeps this
                graph's. What the missing node would have written reads as this.

        Raises:
            IndexError: there is no such node.
            RuntimeError: the graph was released.
        """
        self._require_node(index)
        nodes = self.nodes[:index] + self.nodes[index + 1 :]
        order = [it - (it > index) for it in self._order if it != index]
        byte = self._poison_byte if poison_byte is None else poison_byte
        return self._variant(nodes, order, byte)

    def running(self, index: int, run: "partial[Any]") -> "EmulatedGraph":
        """Return a graph on the same memory whose node at position `index` does `run`
        instead, as with another operand.

        Raises:
            IndexError: there is no such node.
            RuntimeError: the graph was released.
        """
        self._require_node(index)
        nodes = list(self.nodes)
        nodes[index] = replace(nodes[index], run=run)
        return self._variant(nodes, self._order, self._poison_byte)

    def in_order(self, order: Sequence[int]) -> "EmulatedGraph":
        """Return a graph on the same memory that runs its nodes in that order.

        Args:
            order: the positions in `nodes`, each once.

        Raises:
            ValueError: a position is missing, or there twice.
            RuntimeError: the graph was released.
        """
        if sorted(order) != list(range(self.num_nodes)):
            raise ValueError(
                f"order {list(order)} does not name each of the {self.num_nodes} nodes "
                "of this EmulatedGraph once; permute its own `order`."
            )
        return self._variant(self.nodes, order, self._poison_byte)

    def _require_node(self, index: int) -> None:
        self._require_pool()
        if not 0 <= index < self.num_nodes:
            raise IndexError(
                f"index {index} names no node of this EmulatedGraph; "
                f"use 0 <= index < num_nodes = {self.num_nodes}."
            )

    def _require_pool(self) -> GraphPool:
        if self._pool is None:
            raise RuntimeError(
                "this EmulatedGraph was released, so it has no nodes; capture it again."
            )
        return self._pool

    def _variant(
        self, nodes: Sequence[Node], order: Sequence[int], poison_byte: int
    ) -> "EmulatedGraph":
        return EmulatedGraph(nodes, self._require_pool(), poison_byte, order)

    def release(self) -> None:
        """Drop the nodes and the pool; graphs made from this one keep theirs."""
        self._nodes, self._runs, self._pool = None, (), None


class EmulatedRecorder:
    """Captures builds whose device memory is declared CPU tensors.

    Args:
        device: the device that factories name to allocate device memory, with an
            index, such as `torch.device("cpu:0")`; during a capture `Tensor.device`
            of device memory is this device. Any other device is the host.
        device_memory: tensors whose storages are device memory.
        pinned_memory: tensors whose storages are persistent pinned host memory; a
            non-blocking copy reads them again at every replay.
        rotating_memory: tensors whose storages a rotating buffer hands out; a capture
            refuses them as operands of device work.
        poison_byte: byte that fills the graph's own allocations before each replay.
        starts_cold: as with a cold JIT cache, a capture refuses interpreted kernels
            that no warm-up of this recorder launched.

    Raises:
        ValueError: `device` has no index, a storage is declared twice with different
            placements, or `poison_byte` is no byte.
    """

    name: ClassVar[str] = "emulated"
    _session: ClassVar[CaptureSession | None] = None  # the capture in progress

    def __init__(
        self,
        device: torch.device,
        device_memory: Iterable[torch.Tensor],
        pinned_memory: Iterable[torch.Tensor] = (),
        rotating_memory: Iterable[torch.Tensor] = (),
        *,
        poison_byte: int = POISON_BYTE,
        starts_cold: bool = False,
    ) -> None:
        if device.type != "cpu" or device.index is None:
            raise ValueError(
                f"device {str(device)!r} is not a CPU device with an index, by which "
                "device allocations are told from host allocations; use "
                'torch.device("cpu:0").'
            )
        if not 0 <= poison_byte <= 255:
            raise ValueError(f"poison_byte {poison_byte} is no byte; use 0 to 255.")
        self._device = device
        self._poison_byte = poison_byte
        self._warm_kernels = WarmKernels() if starts_cold else None
        self._memory = DeviceMemory(device_memory, pinned_memory, rotating_memory)
        self._side_streams: dict[int, EmulatedSideStream] = {}
        self._num_captures = 0

    def warm_up(self, build: Callable[[], object]) -> None:
        """Run `build` once; unlike a capture it executes and writes its buffers."""
        if self._warm_kernels is None:
            build()
            return
        with noted_launches(self._warm_kernels):
            build()

    def synchronize(self) -> None:
        """Do nothing: CPU operations are done when they return.

        Raises:
            CaptureError: a capture is in progress.
        """
        _refuse_in_capture("EmulatedRecorder.synchronize", SYNCHRONIZES)

    def capture(self, build: Callable[[], T]) -> tuple[EmulatedGraph, T]:
        """Record `build`; memory declared before holds what it held before.

        If it forks, the graph's replays run the branches in another order: as a whole
        and the last one first, or interleaved, the same way at every replay. Captures
        take turns.

        Raises:
            CaptureError: the build does what a CUDA graph cannot record, even if the
                build itself caught the error; or another capture is in progress.
        """
        _refuse_in_capture("EmulatedRecorder.capture", NESTED)
        session = CaptureSession(self._memory, self._device, self._poison_byte)
        EmulatedRecorder._session = session
        try:
            with (
                recorded_launches(session, self._warm_kernels),
                OperationMode(session),
                FunctionMode(session),
            ):
                result = build()
                if session.order.unjoined():
                    session.refuse("a side stream", UNJOINED)
        finally:
            EmulatedRecorder._session = None
            session.finish()
        if session.first_refusal is not None:
            raise session.first_refusal
        seed = self._num_captures if self._num_captures % 2 else 0
        order = session.order.drawn(seed)
        self._num_captures += 1
        graph = EmulatedGraph(session.nodes, session.pool, self._poison_byte, order)
        return graph, result

    def side_stream(self, index: int) -> EmulatedSideStream:
        """The side stream of that number; it keeps the order of the calls alone."""
        if index not in self._side_streams:
            self._side_streams[index] = EmulatedSideStream(
                index, lambda: EmulatedRecorder._session
            )
        return self._side_streams[index]

    def replay_times(self, graph: RecordedGraph) -> ReplayTimes | None:
        """None: a replay on the CPU takes no GPU's time."""
        return None


def _refuse_in_capture(operation: str, refusal: Refusal) -> None:
    if EmulatedRecorder._session is not None:
        EmulatedRecorder._session.refuse(operation, refusal)
