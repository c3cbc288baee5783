"""Recorded operations, and how each is run again on the same memory.

Everything a replay needs is bound when the node is made: operands as private
aliases, host scalars by value, outputs at the addresses of the capture. A
replay is then one call a node.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch._ops import OpOverload

from graphparity.fastpath.recorders.device_memory import alias_of
from graphparity.fastpath.recorders.protocol import NodeParameters

NodeKind = Literal["kernel", "copy", "fill", "op"]
# What torch hands to an operation or gets from it: a tensor, a scalar, a dtype, a
# list of those. torch itself types it so.
Operand = Any

_COPIES = frozenset({"copy_", "_to_copy", "clone"})
_FILLS = frozenset(
    {"fill_", "zero_", "full", "zeros", "ones", "full_like", "zeros_like"}
)
# Arguments that a functional overload has and its `out` overload takes from `out`.
_TAKEN_FROM_OUT = frozenset({"dtype", "layout", "device", "pin_memory"})


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One recorded device operation.

    Attributes:
        index: place in the recording order; kept when another node is removed.
        kind: "kernel" for a Triton launch, else "copy", "fill" or "op".
        name: such as `aten.copy_.default` or `triton:_ring_slot_mapping_kernel`.
        location: `file:line` of the caller.
        reads: tensors it may read.
        writes: tensors it may write; a kernel may write any of its arguments.
        run: runs it again; it binds every operand, of a kernel behind the executor.
        parameters: what it is given at every replay.
    """

    index: int
    kind: NodeKind
    name: str
    location: str
    reads: tuple[torch.Tensor, ...] = field(repr=False)
    writes: tuple[torch.Tensor, ...] = field(repr=False)
    run: functools.partial[Any] = field(repr=False)
    parameters: NodeParameters = field(repr=False)

    def describe(self) -> str:
        """Return the node as one line of a listing."""
        return f"{self.index:3d} {self.kind:6s} {self.name}  [{self.location}]"


def kind_of(func: OpOverload) -> NodeKind:
    """Return the kind of node that an ATen operation becomes."""
    name = func.overloadpacket.__name__
    return "copy" if name in _COPIES else "fill" if name in _FILLS else "op"


def tensors_in(value: object) -> Iterator[torch.Tensor]:
    """Yield the tensors of an operand, an argument list or a result, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)


def mutated_operands(
    func: OpOverload, args: Sequence[Operand], kwargs: dict[str, Operand]
) -> list[torch.Tensor]:
    """Return the operands that the schema of `func` says it writes."""
    written: list[torch.Tensor] = []
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = (
                args[position] if position < len(args) else kwargs.get(argument.name)
            )
            written.extend(tensors_in(value))
    return written


def frozen(value: Operand, keeps_address: Callable[[torch.Tensor], bool]) -> Operand:
    """Return an operand as a replay needs it, cut off from the caller's objects.

    Memory of the graph keeps its address; a host scalar keeps the value it has now.
    """
    if isinstance(value, torch.Tensor):
        return alias_of(value) if keeps_address(value) else alias_of(value).clone()
    if isinstance(value, (list, tuple)):
        items = [frozen(item, keeps_address) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        return {name: frozen(item, keeps_address) for name, item in value.items()}
    return value


def bound_replay(
    func: OpOverload,
    args: Operand,
    kwargs: dict[str, Operand],
    outputs: Sequence[torch.Tensor | None],
) -> functools.partial[Any]:
    """Bind an operation and the memory that its results went to.

    Args:
        func: the operation.
        args: its frozen operands.
        kwargs: its frozen keyword operands.
        outputs: for each result the memory to fill, None where the result is a view
            of an operand.
    """
    if all(output is None for output in outputs):
        return functools.partial(func, *args, **kwargs)
    overload = None if any(it is None for it in outputs) else out_overload(func)
    if overload is None or len(overload[1]) != len(outputs):
        return functools.partial(_run_and_copy, func, args, kwargs, outputs)
    out_func, out_names, accepted = overload
    named = {name: value for name, value in kwargs.items() if name in accepted}
    named.update(zip(out_names, outputs, strict=True))
    return functools.partial(out_func, *args, **named)


def _run_and_copy(
    func: OpOverload,
    args: Operand,
    kwargs: dict[str, Operand],
    outputs: Sequence[torch.Tensor | None],
) -> None:
    # An operation without an `out` overload allocates each time; its result goes
    # to the address that was captured.
    for output, result in zip(outputs, tensors_in(func(*args, **kwargs)), strict=True):
        if output is not None:
            output.copy_(result)


@functools.cache
def out_overload(
    func: OpOverload,
) -> tuple[OpOverload, tuple[str, ...], frozenset[str]] | None:
    """Find the overload of `func` that writes into given outputs.

    Returns:
        The overload, the names of its outputs, and the names of its inputs; None
        where there is no overload with the same inputs.
    """
    every = [(argument.name, str(argument.type)) for argument in func._schema.arguments]
    fewer = [argument for argument in every if argument[0] not in _TAKEN_FROM_OUT]
    candidates = [
        getattr(func.overloadpacket, name) for name in func.overloadpacket.overloads()
    ]
    for inputs in (every, fewer):
        for candidate in candidates:
            arguments = candidate._schema.arguments
            outputs = tuple(argument.name for argument in arguments if argument.is_out)
            taken = [(arg.name, str(arg.type)) for arg in arguments if not arg.is_out]
            if outputs and taken == inputs:
                return candidate, outputs, frozenset(name for name, _ in taken)
    return None
