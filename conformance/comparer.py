"""Compare two builds of one step, leaf by leaf; exact unless a class says why not.

A build is flattened to path -> leaf. Values, places (address, shape, strides) and
kinds are compared apart, and one error lists every differing path in the form
*path: actual, but should be expected*.
"""

import dataclasses
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import torch

from graphparity.fastpath.graph_key import GraphKey
from graphparity.fastpath.proving.group_memory import same_content

_MAX_SHOWN = 6


class FieldClass(Enum):
    """What a metadata field promises on replay."""

    EXACT = "equal to the eager build's"
    BOUND = "a host upper bound, frozen at its worst case"
    BOUND_AFFECTING = "what an eager build makes of the recording's bounds"
    STAND_IN = "the value of a stand-in for a compiled operation, not compared"


BOUND_FIELDS = {
    "max_seq_len": "kernels take it as an upper bound of seq_lens",
}
"""Fields that may exceed the eager build's, each with the reason."""

BOUND_AFFECTING_FIELDS = {
    "scheduler_metadata": "FlashAttention 3 plans with max_seqlen_k: a window of at "
    "least that many tokens is none to it",
}
"""Fields and buffers that follow a bound on the device, each with the reason. They may
be as an eager build with the recording's bounds leaves them, and in no other way unlike
the eager build."""


@dataclass(frozen=True)
class Leaf:
    """One value of a build, copied out of buffers that the next build overwrites."""

    value: Any
    place: tuple[Any, ...] | None = None
    """(address, shape, strides, dtype) of a tensor."""
    is_host: bool = False
    """Whether the field's name says that it is a host tensor (``_cpu``)."""

    @property
    def is_tensor(self) -> bool:
        """Whether the leaf is a tensor."""
        return self.place is not None

    @property
    def is_device(self) -> bool:
        """Whether the leaf is a tensor in device memory; one without elements lies
        nowhere.
        """
        return self.is_tensor and not self.is_host and self.value.numel() > 0

    @property
    def address(self) -> int:
        """Where a tensor begins."""
        assert self.place is not None
        return int(self.place[0])


@dataclass(frozen=True)
class Difference:
    """One path at which two builds differ."""

    path: str
    actual: str
    expected: str

    def __str__(self) -> str:
        return f"{self.path}: {self.actual}, but should be {self.expected}"


@dataclass(frozen=True)
class Mismatch:
    """What a comparison found, and how to see it again."""

    subject: str
    title: str
    """What was compared with what."""
    found: tuple[Difference, ...]
    groups: tuple[str, ...]
    """The attention group that each difference is of."""
    key: GraphKey | None = None
    """Of the step, if it is a decode step of a key."""
    item: int | None = None
    """The step's place in a history, from 1; None outside histories."""
    step: str = ""
    """The step's description; "" where no step repeats the comparison."""
    repeat: str = ""
    """Python that compares it again; "" where nothing does."""

    def __str__(self) -> str:
        key = f" [{self.key}]" if self.key is not None else ""
        where = f", item {self.item} of a history" if self.item is not None else ""
        title = f"{self.title} of {self.subject}{key}{where}"
        lines = [f"  {difference}" for difference in self.found]
        if self.repeat:
            repeat = self.repeat.splitlines()
            lines += ["To repeat it:", *(f"  {line}" for line in repeat)]
        return "\n".join([f"{len(self.found)} difference(s): {title}", *lines])


class ParityError(AssertionError):
    """Two builds of one step differ; the message lists every path."""

    def __init__(self, mismatch: Mismatch) -> None:
        super().__init__(str(mismatch))
        self.mismatch = mismatch


def leaves(attn_metadata: Any) -> dict[str, Leaf]:
    """Every leaf of a build by path, tensors copied.

    NumPy values are read like tensors and numbers. Of other objects, the attributes
    are leaves; an object without any, or inside another, is opaque: compared by type.
    """
    return dict(_walk(attn_metadata, "", in_object=False))


_PLAIN = (int, float, str, bytes, Enum, torch.dtype, frozenset, set, type(None))
"""Types whose values are compared by equality."""


def _walk(value: Any, path: str, *, in_object: bool) -> Iterator[tuple[str, Leaf]]:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, torch.Tensor):
        yield path, _tensor_leaf(value, is_host=path.endswith("_cpu"))
    elif isinstance(value, np.ndarray):
        yield path, _tensor_leaf(torch.from_numpy(value), is_host=True)
    elif isinstance(value, _PLAIN):
        yield path, Leaf(value)
    else:
        is_object = not isinstance(value, Mapping | list | tuple)
        is_object = is_object and not dataclasses.is_dataclass(value)
        members = [] if is_object and in_object else list(_members(value))
        if not members:
            yield path or "metadata", Leaf(f"a {type(value).__name__}")
        for name, member in members:
            at = f"{path}.{name}" if path else name
            yield from _walk(member, at, in_object=in_object or is_object)


def _tensor_leaf(tensor: torch.Tensor, *, is_host: bool) -> Leaf:
    place = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
    return Leaf(tensor.to("cpu", copy=True), place, is_host=is_host)


def _members(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((str(key), member) for key, member in value.items())
    elif isinstance(value, list | tuple):
        yield from ((f"[{i}]", member) for i, member in enumerate(value))
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield field.name, getattr(value, field.name)
    else:
        yield from vars(value).items() if hasattr(value, "__dict__") else ()


def field_class(path: str, stand_in_fields: Collection[str]) -> FieldClass:
    """The class of the field at ``path``, by the field's own name."""
    name = path.rsplit(".", 1)[-1]
    if name in stand_in_fields:
        return FieldClass.STAND_IN
    if name in BOUND_AFFECTING_FIELDS:
        return FieldClass.BOUND_AFFECTING
    return FieldClass.BOUND if name in BOUND_FIELDS else FieldClass.EXACT


def differences(
    actual: Mapping[str, Leaf],
    expected: Mapping[str, Leaf],
    *,
    stand_in_fields: Collection[str] = (),
    worst_case: int | None = None,
) -> list[Difference]:
    """Every path at which the values of ``actual`` differ from ``expected``.

    Args:
        actual: the build under test.
        expected: what it should be.
        stand_in_fields: names of fields that are not compared.
        worst_case: what a bound may be frozen at; None where bounds must be equal.
    """
    found = [
        Difference(path, _presence(path in actual), _presence(path in expected))
        for path in sorted(actual.keys() ^ expected.keys())
    ]
    for path in expected:
        if path in actual:
            kind = field_class(path, stand_in_fields)
            is_frozen = worst_case is not None and actual[path].value == worst_case
            if not (kind is FieldClass.BOUND and is_frozen):
                found += _value_difference(path, actual[path], expected[path], kind)
    return found


def moved(
    actual: Mapping[str, Leaf], expected: Mapping[str, Leaf]
) -> dict[str, Difference]:
    """The device tensors of both builds whose address or layout differs."""
    return {
        path: Difference(path, f"at {actual[path].place}", f"at {leaf.place}")
        for path, leaf in expected.items()
        if path in actual and leaf.is_device and actual[path].place != leaf.place
    }


def _presence(present: bool) -> str:
    return "present" if present else "absent"


def _value_difference(
    path: str, actual: Leaf, expected: Leaf, kind: FieldClass
) -> list[Difference]:
    if kind is FieldClass.STAND_IN:
        return []
    if actual.is_tensor and expected.is_tensor:
        return _tensor_difference(path, actual.value, expected.value)
    if (
        actual.is_tensor
        or expected.is_tensor
        or type(actual.value) is not type(expected.value)
    ):
        return [Difference(path, _kind(actual), _kind(expected))]
    if actual.value == expected.value or _both_nan(actual.value, expected.value):
        return []
    return [Difference(path, repr(actual.value), repr(expected.value))]


def _both_nan(actual: Any, expected: Any) -> bool:
    return (
        isinstance(actual, float)
        and isinstance(expected, float)
        and math.isnan(actual)
        and math.isnan(expected)
    )


def _kind(leaf: Leaf) -> str:
    return "a tensor" if leaf.is_tensor else repr(leaf.value)


def _tensor_difference(
    path: str, actual: torch.Tensor, expected: torch.Tensor
) -> list[Difference]:
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return [Difference(path, _layout(actual), _layout(expected))]
    if same_content(actual, expected):
        return []
    differs = actual != expected
    if actual.dtype.is_floating_point:
        differs &= ~(actual.isnan() & expected.isnan())
    wrong = differs.nonzero().tolist()
    shown = wrong[:_MAX_SHOWN]
    more = f" and {len(wrong) - len(shown)} more" if len(wrong) > len(shown) else ""
    at = [tuple(index) for index in shown]
    return [
        Difference(
            f"{path}[{', '.join(map(str, at))}{more}]",
            str([actual[index].item() for index in at]),
            str([expected[index].item() for index in at]),
        )
    ]


def _layout(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} of shape {tuple(tensor.shape)}"
