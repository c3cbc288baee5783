"""The leaves of a build's metadata, each copied out before the next build runs."""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import torch

MAX_DEPTH = 8
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


@dataclass(frozen=True)
class Place:
    """Where a tensor lies, and how it is laid out."""

    address: int
    nbytes: int
    """Of the tensor's elements; at least 1, so that the address is inside."""
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device_type: str


@dataclass(frozen=True)
class Leaf:
    """One value of the metadata."""

    value: Any
    """A copy of a tensor or array; a plain value; an opaque object itself."""
    place: Place | None = None
    """None for all but tensors."""
    is_opaque: bool = False
    is_walked: bool = False
    """Whether an opaque object's own attributes are leaves, too."""

    @property
    def is_number(self) -> bool:
        """Whether the leaf is a host number; a bool is none."""
        return isinstance(self.value, int | float) and not isinstance(self.value, bool)


def leaves(metadata: Any) -> dict[str, Leaf]:
    """Every leaf of ``metadata`` by path.

    Members of containers and dataclasses are leaves or walked on. Any other object
    is an opaque leaf, of which the attributes are walked; of these, no further.
    """
    return dict(_walk(metadata, "", 0, in_opaque=False))


def objects(metadata: Any) -> dict[str, Any]:
    """Every object within ``metadata`` that a reader might fill, by path: of those
    that are walked for leaves, all but tuples.
    """
    return dict(_objects(metadata, "", 0))


def _objects(value: Any, path: str, depth: int) -> Iterator[tuple[str, Any]]:
    if isinstance(value, (torch.Tensor, np.ndarray, np.generic, *_PLAIN)):
        return
    members = _members(value)
    if members is None and not _attributes(value):
        return
    if path and not isinstance(value, tuple):
        yield path, value
    for name, member in (members or []) if depth < MAX_DEPTH else ():
        yield from _objects(member, f"{path}.{name}" if path else name, depth + 1)


def _walk(
    value: Any, path: str, depth: int, *, in_opaque: bool
) -> Iterator[tuple[str, Leaf]]:
    if isinstance(value, torch.Tensor):
        yield path, Leaf(value.detach().clone(), _place(value))
    elif isinstance(value, np.ndarray) and value.dtype != object:
        yield path, Leaf(torch.from_numpy(value.copy()))
    elif isinstance(value, np.generic):
        yield path, Leaf(value.item())
    elif isinstance(value, _PLAIN):
        yield path, Leaf(value)
    else:
        members = _members(value)
        if members is None:
            members = [] if in_opaque else _attributes(value)
            in_opaque = True
            yield path, Leaf(value, is_opaque=True, is_walked=bool(members))
        for name, member in members if depth < MAX_DEPTH else ():
            inner = f"{path}.{name}" if path else name
            yield from _walk(member, inner, depth + 1, in_opaque=in_opaque)


def _members(value: Any) -> list[tuple[str, Any]] | None:
    """The members of a container or dataclass; None for an opaque object."""
    if isinstance(value, Mapping):
        return [(str(key), member) for key, member in value.items()]
    if isinstance(value, list | tuple):
        return [(f"[{i}]", member) for i, member in enumerate(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return [(name, getattr(value, name)) for name in names if hasattr(value, name)]
    return None


def _attributes(value: Any) -> list[tuple[str, Any]]:
    """What an object holds; nothing of classes, functions and enum members."""
    if isinstance(value, type | Enum) or callable(value):
        return []
    return list(getattr(value, "__dict__", {}).items())


def _place(tensor: torch.Tensor) -> Place:
    return Place(
        address=tensor.data_ptr(),
        nbytes=max(1, span_bytes(tensor)),
        dtype=tensor.dtype,
        shape=tuple(tensor.shape),
        strides=tensor.stride(),
        device_type=tensor.device.type,
    )


def span_bytes(tensor: torch.Tensor) -> int:
    """Bytes from a tensor's first element to past its last."""
    if not tensor.numel():
        return 0
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return (1 + sum((n - 1) * step for n, step in steps)) * tensor.element_size()
