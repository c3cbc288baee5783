"""What a CUDA capture refuses, and why.

The rules of copies and indexing were run on an H200 (torch 2.11): a blocking copy
from pinned memory, `x[0] = 3`, `x[indices] = 3` and `torch.where(m, x, host)` fail
there in a capture; `x[:2] = 3`, `x[mask] = 3` and `x.fill_(host)` do not.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch._ops import OpOverload

from graphparity.fastpath.recorders.device_memory import Placement
from graphparity.fastpath.recorders.nodes import Operand, tensors_in


class Refusal(NamedTuple):
    """Why an operation cannot be recorded, and what to do instead."""

    reason: str
    remedy: str


READ = Refusal(
    "it reads device memory on the host, which needs a synchronization",
    "keep the value on the device, or read a host copy made before the build",
)
SHAPE = Refusal(
    "the shape of its result depends on values in device memory",
    "use an operation of fixed shape, such as torch.where or a masked store",
)
PAGEABLE = Refusal(
    "it copies pageable host memory to the device, which needs a synchronization",
    "write a declared pinned buffer and copy it with non_blocking=True, "
    "or fill device memory from a Python scalar",
)
BLOCKING = Refusal(
    "a blocking copy between pinned and device memory synchronizes the stream",
    "pass non_blocking=True",
)
PINNED_TEMPORARY = Refusal(
    "its pinned source was made during the capture, and is freed before a replay",
    "declare a persistent pinned buffer that is written before each replay",
)
ROTATING = Refusal(
    "the buffer rotates, so the recorded address is stale at the next step",
    "copy it into a persistent device buffer before each replay, outside the build",
)
HOST_OPERAND = Refusal(
    "a host tensor that is not declared is used as device memory",
    "declare it as device memory if it persists, or copy it to a persistent device "
    "buffer before the build",
)
PINNED_OPERAND = Refusal(
    "pinned host memory is an operand of an operation other than a copy",
    "copy it to the device with non_blocking=True first",
)
STORAGE = Refusal(
    "it changes the storage of device memory, and recorded addresses would be stale",
    "allocate the buffer at its largest size before the build, and use views of it",
)
RANDOM = Refusal(
    "random numbers need a registered CUDA generator, which is not emulated",
    "draw the numbers before the build",
)
NESTED = Refusal(
    "another capture is in progress in this process",
    "finish that capture first",
)
SYNCHRONIZES = Refusal(
    "the device cannot be synchronized while a capture is in progress",
    "call it before the first capture",
)
REPLAYS = Refusal(
    "a graph cannot be launched while a capture is in progress",
    "replay it before or after the build",
)
UNFORKED = Refusal(
    "the side stream is not part of the capture, so its work would run at once",
    "let it fork from the capture stream first",
)
COLD_STREAM = Refusal(
    "no warm-up used the side stream, so a library would make its per-stream state "
    "within the capture",
    "use the same side streams in a warm-up of the build",
)
UNJOINED = Refusal(
    "the capture stream does not wait for it, so a step would not either",
    "join every side stream before the build returns",
)

_BY_PLACEMENT = {
    Placement.ROTATING: ROTATING,
    Placement.PINNED_TEMPORARY: PINNED_TEMPORARY,
    Placement.PINNED: PINNED_OPERAND,
    Placement.PAGEABLE: HOST_OPERAND,
}
STORAGE_CHANGES = frozenset({"set_", "resize_", "resize_as_", "_resize_output_"})
_INDEXED_READS = frozenset({"index", "_unsafe_index"})
_INDEXED_WRITES = frozenset(
    {"index_put_", "index_put", "_index_put_impl_", "_unsafe_index_put"}
)
_MASK_DTYPES = (torch.bool, torch.uint8)

PlacementOf = Callable[[torch.Tensor], Placement]


def operation_refusal(
    func: OpOverload,
    args: Sequence[Operand],
    kwargs: dict[str, Operand],
    placement: PlacementOf,
) -> Refusal | None:
    """Return why an ATen operation on device memory cannot be recorded, or None."""
    name = func.overloadpacket.__name__
    if torch.Tag.nondeterministic_seeded in func.tags:
        return RANDOM
    if name in STORAGE_CHANGES:
        return STORAGE
    if name in _INDEXED_READS or name in _INDEXED_WRITES:
        return _indexing_refusal(args, placement, writes=name in _INDEXED_WRITES)
    if name == "copy_":
        non_blocking = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
        return copy_refusal(
            placement(args[0]), placement(args[1]), non_blocking=non_blocking
        )
    return (
        _data_dependence(func, kwargs)
        or _moved_scalar(name, args, placement)
        or _operand_refusal([*args, *kwargs.values()], placement)
    )


def copy_refusal(
    target: Placement, source: Placement, *, non_blocking: bool
) -> Refusal | None:
    """Return why a copy is refused of which one side is device memory."""
    if target is source:
        return None
    host = source if target is Placement.DEVICE else target
    if host is Placement.PINNED:
        return None if non_blocking else BLOCKING
    if host is Placement.PAGEABLE:
        return PAGEABLE if target is Placement.DEVICE else READ
    return _BY_PLACEMENT[host]


def kernel_argument_refusal(placement: Placement) -> Refusal | None:
    """Return why a Triton kernel cannot take an argument of `placement`, or None."""
    # A kernel reads pinned memory in place, scalars included, at every replay.
    return None if placement is Placement.PINNED else _BY_PLACEMENT.get(placement)


def _indexing_refusal(
    args: Sequence[Operand], placement: PlacementOf, *, writes: bool
) -> Refusal | None:
    indices = list(tensors_in(args[1]))
    for index in indices:
        if placement(index) is not Placement.DEVICE:
            refusal = _BY_PLACEMENT[placement(index)]
            return PAGEABLE if refusal in (HOST_OPERAND, PINNED_OPERAND) else refusal
    is_masked = any(index.dtype in _MASK_DTYPES for index in indices)
    takes_scalar = (
        writes and args[2].dim() == 0 and placement(args[2]) is not Placement.DEVICE
    )
    if is_masked:  # one mask and a host scalar become masked_fill_
        return None if takes_scalar and len(indices) == 1 else SHAPE
    if takes_scalar:
        return PAGEABLE
    return _operand_refusal([args[0], *args[2:3]], placement)


def _data_dependence(func: OpOverload, kwargs: dict[str, Operand]) -> Refusal | None:
    if torch.Tag.data_dependent_output in func.tags:
        return READ
    if torch.Tag.dynamic_output_shape not in func.tags:
        return None
    has_fixed_shape = kwargs.get("output_size") is not None
    return None if has_fixed_shape else SHAPE


def _moved_scalar(
    name: str, args: Sequence[Operand], placement: PlacementOf
) -> Refusal | None:
    # torch.where moves a host scalar to the device; other operations pass its value.
    if name != "where":
        return None
    scalars = (tensor for tensor in tensors_in(args) if tensor.dim() == 0)
    return (
        PAGEABLE if any(placement(it) is Placement.PAGEABLE for it in scalars) else None
    )


def _operand_refusal(
    operands: Sequence[Operand], placement: PlacementOf
) -> Refusal | None:
    for tensor in tensors_in(operands):
        where = placement(tensor)
        is_scalar = tensor.dim() == 0 and where is not Placement.ROTATING
        if where is not Placement.DEVICE and not is_scalar:
            return _BY_PLACEMENT[where]
    return None
