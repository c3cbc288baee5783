"""The state of one capture, and how its execution is undone.

A CUDA capture does not execute. This one has to, because shapes and addresses
come from execution; so it keeps what a storage held before the first operation
that writes it, and writes that back at the end. Memory allocated during the
capture starts as zeros (indices read from it stay in range) and ends poisoned.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

import torch

from graphparity.fastpath.recorders.call_sites import call_site
from graphparity.fastpath.recorders.device_memory import (
    DeviceMemory,
    GraphPool,
    Placement,
    StorageSnapshots,
    plain_tensors,
    storage_id,
)
from graphparity.fastpath.recorders.node_parameters import node_parameters
from graphparity.fastpath.recorders.nodes import Node, NodeKind, Operand, tensors_in
from graphparity.fastpath.recorders.protocol import CaptureError
from graphparity.fastpath.recorders.refusals import Refusal
from graphparity.fastpath.recorders.stream_order import StreamOrder


class CaptureSession:
    """State of one capture.

    Attributes:
        device: the declared device; a factory called for it allocates device memory.
        nodes: what was recorded so far.
        order: which of them must follow which.
        is_executing: true while an operation of the session itself runs, which the
            modes must let through.
        inherits_device: true while a torch function runs that was given device memory
            and no device: what it allocates goes where its operands are.
        first_refusal: what was refused first, even if the build caught the error.
    """

    def __init__(
        self, memory: DeviceMemory, device: torch.device, poison_byte: int
    ) -> None:
        self.device = device
        self.nodes: list[Node] = []
        self.order = StreamOrder()
        self.is_executing = False
        self.inherits_device = False
        self.first_refusal: CaptureError | None = None
        self.pool = GraphPool()
        self._poison_byte = poison_byte
        self._memory = memory
        self._snapshots = StorageSnapshots()
        self._pinned_temporaries: dict[int, torch.UntypedStorage] = {}
        memory.add_pool(self.pool)

    def placement(self, tensor: torch.Tensor) -> Placement:
        """Return where `tensor` lives."""
        if storage_id(tensor) in self._pinned_temporaries:
            return Placement.PINNED_TEMPORARY
        return self._memory.placement(tensor)

    def holds(self, operands: object) -> bool:
        """Return whether a tensor among `operands` is in device memory."""
        return any(
            self.placement(it) is Placement.DEVICE for it in tensors_in(operands)
        )

    def add_pinned_temporary(self, tensor: torch.Tensor) -> None:
        """Count `tensor` as pinned memory that is freed after the capture."""
        self._pinned_temporaries[storage_id(tensor)] = tensor.untyped_storage()

    @contextmanager
    def execution(self) -> Iterator[None]:
        """Let every operation through, and make plain tensors."""
        outer, self.is_executing = self.is_executing, True
        try:
            with plain_tensors():
                yield
        finally:
            self.is_executing = outer

    def refuse(self, operation: str, refusal: Refusal) -> NoReturn:
        """Raise the `CaptureError` of an operation."""
        error = CaptureError(
            operation=operation,
            reason=refusal.reason,
            location=call_site(),
            remedy=refusal.remedy,
        )
        self.first_refusal = self.first_refusal or error
        raise error

    def record(
        self,
        kind: NodeKind,
        name: str,
        run: "partial[Any]",
        *,
        reads: Sequence[torch.Tensor],
        writes: Sequence[torch.Tensor],
        arguments: Iterable[tuple[str, Operand]],
    ) -> None:
        """Append a node; `reads` and `writes` are aliases that nobody else changes,
        and `arguments` are named operands, frozen as the replay is given them.
        """
        location = call_site()
        with self.execution():
            parameters = node_parameters(
                kind, name, location, arguments, writes, self.placement
            )
        index, reads, writes = len(self.nodes), tuple(reads), tuple(writes)
        self.nodes.append(
            Node(index, kind, name, location, reads, writes, run, parameters)
        )
        self.order.add_node()

    def keep_content(self, tensors: Sequence[torch.Tensor]) -> None:
        """Snapshot the storages of `tensors`, but for those this capture allocated."""
        with self.execution():
            for tensor in tensors:
                if storage_id(tensor) not in self.pool:
                    self._snapshots.save(tensor)

    def finish(self) -> None:
        """Undo the execution: contents as before the capture, allocations poisoned."""
        with self.execution():
            self._snapshots.restore()
            self.pool.seal()
            self.pool.poison(self._poison_byte)
