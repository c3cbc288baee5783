"""One capture: it decides what is device work, refuses or records it, and undoes it.

A CUDA capture does not execute. This one has to, because shapes and addresses
come from execution; so it keeps what a storage held before the first operation
that writes it, and writes that back at the end. Memory allocated during the
capture starts as zeros (indices read from it stay in range) and ends poisoned.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch._ops import OpOverload

from graphparity.fastpath.recorders.call_sites import call_site
from graphparity.fastpath.recorders.device_memory import (
    DeviceMemory,
    GraphPool,
    Placement,
    StorageSnapshots,
    alias_of,
    plain_tensors,
    storage_id,
)
from graphparity.fastpath.recorders.nodes import (
    Node,
    NodeKind,
    bound_replay,
    frozen,
    kind_of,
    mutated_operands,
    tensors_in,
)
from graphparity.fastpath.recorders.protocol import CaptureError
from graphparity.fastpath.recorders.refusals import (
    READ,
    STORAGE,
    Refusal,
    copy_refusal,
    operation_refusal,
)

_COPIES = frozenset({"copy_", "_to_copy"})
_UNFILLED = frozenset(
    {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"}
)
# Operations that read the shape of their tensor operand, and no value of it.
_SHAPE_ONLY = frozenset(
    f"{content}_like" for content in ("empty", "zeros", "ones", "full", "rand", "randn", "randint")
) | frozenset(f"new_{content}" for content in ("empty", "empty_strided", "zeros", "ones", "full"))


class CaptureSession:
    """State of one capture.

    Attributes:
        device: the declared device; a factory called for it allocates device memory.
        nodes: what was recorded so far.
        is_executing: true while an operation of the session itself runs, which the
            modes must let through.
        inherits_device: true while a torch function runs that was given device memory
            and no device: what it allocates goes where its operands are.
        first_refusal: what was refused first, even if the build caught the error.
    """

    def __init__(self, memory: DeviceMemory, device: torch.device, poison_byte: int) -> None:
        self.device = device
        self.nodes: list[Node] = []
        self.is_executing = False
        self.inherits_device = False
        self.first_refusal: CaptureError | None = None
        self.pool = GraphPool(poison_byte)
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
        return any(self.placement(it) is Placement.DEVICE for it in tensors_in(operands))

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

    def run_operation(self, func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Run an ATen operation, and record or refuse it where it is device work."""
        on_device = self.holds([args, kwargs])
        allocates = self._allocates_on_device(func, kwargs, on_device=on_device)
        name = func.overloadpacket.__name__
        if name in _SHAPE_ONLY and not allocates or not (on_device or allocates):
            return func(*args, **kwargs)  # host work: it runs now, and never again
        if torch.Tag.inplace_view in func.tags and name not in ("set_", "resize_", "resize_as_"):
            return func(*args, **kwargs)  # only the caller's tensor object changes
        refusal = self._refusal(func, args, kwargs, on_device=on_device, allocates=allocates)
        if refusal is not None:
            self.refuse(str(func), refusal)
        return self._record_operation(func, args, kwargs)

    def record(
        self,
        kind: NodeKind,
        name: str,
        run: Callable[[], object],
        *,
        reads: Sequence[torch.Tensor],
        writes: Sequence[torch.Tensor],
    ) -> None:
        """Append a node; `reads` and `writes` are aliases that nobody else changes."""
        index = len(self.nodes)
        self.nodes.append(
            Node(index, kind, name, call_site(), tuple(reads), tuple(writes), run)
        )

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
            self.pool.poison()

    def _allocates_on_device(
        self, func: OpOverload, kwargs: dict[str, Any], *, on_device: bool
    ) -> bool:
        if not any(argument.name == "device" for argument in func._schema.arguments):
            return False
        device = kwargs.get("device")
        if device is None:
            return on_device
        # C++ composites pass on the device of an operand, which has lost its index.
        return bool(device == self.device) or (self.inherits_device and device.index is None)

    def _refusal(
        self,
        func: OpOverload,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        *,
        on_device: bool,
        allocates: bool,
    ) -> Refusal | None:
        name = func.overloadpacket.__name__
        if name == "_to_copy":
            if on_device:
                return None if allocates else READ
            non_blocking = kwargs.get("non_blocking", False)
            source = self.placement(args[0])
            return copy_refusal(Placement.DEVICE, source, non_blocking=non_blocking)
        operands = () if name in _SHAPE_ONLY else args
        return operation_refusal(func, operands, kwargs, self.placement)

    def _record_operation(
        self, func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        mutated = mutated_operands(func, args, kwargs)
        self.keep_content(mutated)
        sizes = [(tensor, tensor.untyped_storage().nbytes()) for tensor in mutated]
        known = {storage_id(tensor) for tensor in tensors_in([args, kwargs])}
        result = func(*args, **kwargs)
        self._refuse_resized(func, sizes)
        fresh = [storage_id(out) not in known for out in tensors_in(result)]
        with self.execution():
            self._adopt(func, [out for out, new in zip(tensors_in(result), fresh, strict=True) if new])
            if (mutated or any(fresh)) and func.overloadpacket.__name__ not in _UNFILLED:
                self._record_call(func, args, kwargs, result, fresh)
        return result

    def _refuse_resized(self, func: OpOverload, sizes: list[tuple[torch.Tensor, int]]) -> None:
        for tensor, nbytes in sizes:
            is_resized = tensor.untyped_storage().nbytes() != nbytes
            if is_resized and storage_id(tensor) not in self.pool:
                self.refuse(str(func), STORAGE)

    def _adopt(self, func: OpOverload, outputs: list[torch.Tensor]) -> None:
        for output in outputs:
            self.pool.adopt(output)
            if func.overloadpacket.__name__ in _UNFILLED:
                alias_of(output).zero_()

    def _record_call(
        self,
        func: OpOverload,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        result: Any,
        fresh: list[bool],
    ) -> None:
        def keeps_address(tensor: torch.Tensor) -> bool:
            where = self.placement(tensor)
            is_copied = func.overloadpacket.__name__ in _COPIES
            return where is Placement.DEVICE or (where is Placement.PINNED and is_copied)

        # After the call: `out=` operands have their final shape now.
        args, kwargs = frozen(tuple(args), keeps_address), frozen(kwargs, keeps_address)
        results = zip(tensors_in(result), fresh, strict=True)
        outputs = [alias_of(out) if is_new else None for out, is_new in results]
        written = mutated_operands(func, args, kwargs)
        self.record(
            kind_of(func),
            str(func),
            bound_replay(func, args, kwargs, outputs),
            reads=[it for it in tensors_in([args, kwargs]) if all(it is not w for w in written)],
            writes=[*written, *(out for out in outputs if out is not None)],
        )
