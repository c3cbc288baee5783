"""The parameters of a recorded operation, as plain values and addresses.

Two recordings of one build are compared by them, so a parameter is a value that
compares by content: a scalar as it is, host memory by its values, device memory by
its layout and, apart, its address.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator

import torch

from graphparity.fastpath.recorders.device_memory import Placement
from graphparity.fastpath.recorders.nodes import NodeKind, Operand
from graphparity.fastpath.recorders.protocol import NodeParameters

PlacementOf = Callable[[torch.Tensor], Placement]
_OFF_HOST = (Placement.DEVICE, Placement.PINNED)


def node_parameters(
    kind: NodeKind,
    name: str,
    location: str,
    arguments: Iterable[tuple[str, Operand]],
    writes: Iterable[torch.Tensor],
    placement: PlacementOf,
) -> NodeParameters:
    """The parameters of an operation on frozen, named ``arguments``."""
    values: list[tuple[str, Hashable]] = []
    pointers: list[tuple[str, int]] = []
    written, are_written = set(), {id(tensor) for tensor in writes}
    source: torch.Tensor | None = None
    for path, value in _leaves(arguments):
        if not isinstance(value, torch.Tensor):
            values.append((path, _plain(value)))
        elif placement(value) not in _OFF_HOST:
            values.append((path, _content(value)))
        else:
            values.append((path, _layout(value)))
            pointers.append((path, value.data_ptr()))
            if id(value) in are_written:
                written.add(path)
            elif kind == "copy" and placement(value) is Placement.PINNED:
                source = value
    if source is not None:
        values.append(("nbytes", _span(source)))
        pointers.append(("source", source.data_ptr()))
    return NodeParameters(
        name=name,
        kind=kind if source is None else "host-copy",
        location=location,
        values=tuple(values),
        pointers=tuple(pointers),
        written=frozenset(written),
    )


def _leaves(arguments: Iterable[tuple[str, Operand]]) -> Iterator[tuple[str, Operand]]:
    """Yield the scalars and tensors of ``arguments``, nested ones by path."""
    for path, value in arguments:
        if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
            yield f"len({path})", len(value)
            yield from _leaves((f"{path}[{i}]", item) for i, item in enumerate(value))
        elif isinstance(value, dict):
            yield from _leaves((f"{path}.{key}", item) for key, item in value.items())
        elif not isinstance(value, torch.Tensor) and hasattr(value, "base"):
            yield from _leaves((f"{path}.{k}", v) for k, v in vars(value).items())
        else:
            yield path, value


def _plain(value: Operand) -> Hashable:
    """A host scalar by value and type; any other object by its type."""
    if isinstance(value, (bool, int, float, complex, str, bytes, type(None))):
        return type(value).__name__, repr(value)
    if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.Size)):
        return repr(value)
    if isinstance(value, torch.memory_format):
        return repr(value)
    inner = getattr(value, "value", None)  # a constexpr
    return type(value).__name__, repr(inner) if isinstance(inner, (int, float)) else ""


def _layout(tensor: torch.Tensor) -> Hashable:
    return str(tensor.dtype), tuple(tensor.shape), tensor.stride()


def _content(tensor: torch.Tensor) -> Hashable:
    return str(tensor.dtype), tuple(tensor.shape), repr(tensor.tolist())


def _span(tensor: torch.Tensor) -> int:
    """Bytes from a tensor's first element to past its last."""
    if not tensor.numel():
        return 0
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((size - 1) * stride for size, stride in steps)
    return (last + 1) * tensor.element_size()
