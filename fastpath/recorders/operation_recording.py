"""What a capture does with an ATen operation: run, record or refuse it.

Host work runs and is forgotten. Device work runs too, because its results have
the shapes and addresses of the recording, and becomes a node.
"""

from collections.abc import Iterable, Sequence

import torch
from torch._ops import OpOverload

from graphparity.fastpath.recorders.capture_session import CaptureSession
from graphparity.fastpath.recorders.device_memory import (
    Placement,
    alias_of,
    storage_id,
)
from graphparity.fastpath.recorders.nodes import (
    Operand,
    bound_replay,
    frozen,
    kind_of,
    mutated_operands,
    tensors_in,
)
from graphparity.fastpath.recorders.refusals import (
    READ,
    STORAGE,
    STORAGE_CHANGES,
    Refusal,
    copy_refusal,
    operation_refusal,
)

_COPIES = frozenset({"copy_", "_to_copy"})
_UNFILLED = frozenset(
    {
        "empty",
        "empty_like",
        "empty_strided",
        "empty_permuted",
        "new_empty",
        "new_empty_strided",
    }
)
# Operations that read the shape of their tensor operand, and no value of it.
_SHAPE_ONLY = frozenset(
    f"{content}_like"
    for content in ("empty", "zeros", "ones", "full", "rand", "randn", "randint")
) | frozenset(
    f"new_{content}" for content in ("empty", "empty_strided", "zeros", "ones", "full")
)

# A tensor, the size of its storage in bytes, and its size, stride and offset.
Geometry = tuple[torch.Tensor, int, tuple[torch.Size, tuple[int, ...], int]]


def _geometry(tensor: torch.Tensor) -> Geometry:
    nbytes, offset = tensor.untyped_storage().nbytes(), int(tensor.storage_offset())
    return tensor, nbytes, (tensor.size(), tensor.stride(), offset)


def run_operation(
    session: CaptureSession,
    func: OpOverload,
    args: Sequence[Operand],
    kwargs: dict[str, Operand],
) -> Operand:
    """Run an ATen operation, and record or refuse it where it is device work."""
    on_device = session.holds([args, kwargs])
    allocates = _allocates_on_device(session, func, kwargs, on_device=on_device)
    name = func.overloadpacket.__name__
    if not (allocates or (on_device and name not in _SHAPE_ONLY)):
        return func(*args, **kwargs)  # host work: it runs now, and never again
    if torch.Tag.inplace_view in func.tags and name not in STORAGE_CHANGES:
        return func(*args, **kwargs)  # only the caller's tensor object changes
    refusal = _refusal(
        session, func, args, kwargs, on_device=on_device, allocates=allocates
    )
    if refusal is not None:
        session.refuse(str(func), refusal)
    return _record_operation(session, func, args, kwargs)


def _allocates_on_device(
    session: CaptureSession,
    func: OpOverload,
    kwargs: dict[str, Operand],
    *,
    on_device: bool,
) -> bool:
    if not any(argument.name == "device" for argument in func._schema.arguments):
        return False
    device = kwargs.get("device")
    if device is None:
        return on_device
    # C++ composites pass on the device of an operand, which has lost its index.
    return bool(device == session.device) or (
        session.inherits_device and device.index is None
    )


def _refusal(
    session: CaptureSession,
    func: OpOverload,
    args: Sequence[Operand],
    kwargs: dict[str, Operand],
    *,
    on_device: bool,
    allocates: bool,
) -> Refusal | None:
    name = func.overloadpacket.__name__
    if name == "_to_copy":
        if on_device:
            return None if allocates else READ
        non_blocking = kwargs.get("non_blocking", False)
        source = session.placement(args[0])
        return copy_refusal(Placement.DEVICE, source, non_blocking=non_blocking)
    operands = () if name in _SHAPE_ONLY else args
    return operation_refusal(func, operands, kwargs, session.placement)


def _record_operation(
    session: CaptureSession,
    func: OpOverload,
    args: Sequence[Operand],
    kwargs: dict[str, Operand],
) -> Operand:
    mutated = mutated_operands(func, args, kwargs)
    session.keep_content(mutated)
    before = [_geometry(tensor) for tensor in mutated]
    known = {storage_id(tensor) for tensor in tensors_in([args, kwargs])}
    result = func(*args, **kwargs)
    _refuse_resized(session, func, before)
    fresh = [
        None if storage_id(it) in known or _is_placed(session, it) else it
        for it in tensors_in(result)
    ]
    allocated = [out for out in fresh if out is not None]
    with session.execution():
        _adopt(session, func, allocated)
        # Where nothing is written CUDA launches nothing, as in an empty padded tail.
        is_written = any(it.numel() for it in (*mutated, *allocated))
        if is_written and func.overloadpacket.__name__ not in _UNFILLED:
            _record_call(session, func, args, kwargs, fresh)
    return result


def _is_placed(session: CaptureSession, tensor: torch.Tensor) -> bool:
    # An operation may return a persistent buffer that was no operand.
    return session.placement(tensor) is not Placement.PAGEABLE


def _refuse_resized(
    session: CaptureSession, func: OpOverload, before: list[Geometry]
) -> None:
    for tensor, nbytes, (size, stride, offset) in before:
        is_resized = tensor.untyped_storage().nbytes() != nbytes
        if is_resized and storage_id(tensor) not in session.pool:
            with session.execution():
                tensor.as_strided_(size, stride, offset)
            session.refuse(str(func), STORAGE)


def _adopt(
    session: CaptureSession, func: OpOverload, outputs: Iterable[torch.Tensor]
) -> None:
    for output in outputs:
        session.pool.adopt(output)
        if func.overloadpacket.__name__ in _UNFILLED:
            alias_of(output).zero_()


def _record_call(
    session: CaptureSession,
    func: OpOverload,
    args: Sequence[Operand],
    kwargs: dict[str, Operand],
    fresh: Sequence[torch.Tensor | None],
) -> None:
    def keeps_address(tensor: torch.Tensor) -> bool:
        where = session.placement(tensor)
        is_copied = func.overloadpacket.__name__ in _COPIES
        return where is Placement.DEVICE or (where is Placement.PINNED and is_copied)

    # After the call: `out=` operands have their final shape now.
    args, kwargs = frozen(tuple(args), keeps_address), frozen(kwargs, keeps_address)
    outputs = [None if out is None else alias_of(out) for out in fresh]
    written = mutated_operands(func, args, kwargs)
    session.record(
        kind_of(func),
        str(func),
        bound_replay(func, args, kwargs, outputs),
        reads=[
            it for it in tensors_in([args, kwargs]) if all(it is not w for w in written)
        ],
        writes=[*written, *(out for out in outputs if out is not None)],
        arguments=[
            *zip((it.name for it in func._schema.arguments), args, strict=False),
            *kwargs.items(),
            *((f"result[{i}]", out) for i, out in enumerate(outputs)),
        ],
    )
