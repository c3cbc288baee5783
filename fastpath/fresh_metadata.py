"""A replayed step's metadata in objects of its own, as an eager build makes them.

A recording's metadata is made once: its objects, and the host bounds in them, are
those of the capture. A FULL graph reads neither. Whoever reads a step's metadata on
the host, or keeps or fills it, must find what an eager build would have handed out:
new objects, the step's own bounds, and nothing that an earlier reader left.

Invariant: what ``FreshMetadata`` makes differs from an eager build's metadata in no
host value, and shares no object with an earlier step that an eager build would not
share. Decided once, from the evidence of the prover (``Field``), not per step:

- objects and containers are made anew; an opaque object that every eager build returns
  again stays itself;
- a bound that was the longest sequence's length in every eager build is that of the
  step;
- all else is fixed by the key, or lies in buffers which the replay refreshes.

What the evidence does not explain has no fresh metadata, and says why.
"""

import dataclasses
from collections.abc import Mapping
from enum import Enum
from typing import Any, NamedTuple

import torch

from graphparity.fastpath.metadata_graphs import AttnMetadata
from graphparity.fastpath.proving.verdict import Field, FieldClass


class NotExplainedError(ValueError):
    """The evidence does not say how a step's metadata is made anew."""

    def __init__(self, why: str) -> None:
        super().__init__(
            "its metadata is read on the host as well, and cannot be made anew for "
            f"every step, for {why}; where it was not judged, raise the level."
        )


class _Part(NamedTuple):
    """One object or container of the metadata."""

    cls: type[Any]
    members: dict[Any, Any]
    """By attribute, key or index, as captured."""
    bounds: tuple[Any, ...]
    """The members that are the longest sequence's length."""
    parts: tuple[tuple[Any, int], ...]
    """The members that are parts themselves: member -> index among all parts."""

    def made(self, max_seq_len: int, made: list[Any]) -> Any:
        """The part anew.

        Args:
            max_seq_len: tokens of the step's longest sequence.
            made: the parts before this one, made for the same step.
        """
        members = self.members.copy()
        for name in self.bounds:
            members[name] = max_seq_len
        for name, index in self.parts:
            members[name] = made[index]
        if self.cls is dict:
            return members
        if self.cls in (list, tuple):
            return self.cls(members.values())
        instance = object.__new__(self.cls)
        instance.__dict__.update(members)
        return instance


class FreshMetadata:
    """Makes a recording's metadata anew for every step.

    Args:
        attn_metadata: the recording's.
        fields: what the prover found of its leaves, by path: the name of the first
            layer that has the object, and the members from there.

    Raises:
        NotExplainedError: a leaf of which the evidence does not say how to make it.
    """

    def __init__(
        self, attn_metadata: AttnMetadata, fields: Mapping[str, Field]
    ) -> None:
        self._fields = fields
        self._parts: list[_Part] = []
        self._index_of: dict[int, int] = {}
        self._layers: list[tuple[str, int]] = []
        for name, metadata in attn_metadata.items():
            index = self._add(metadata, name)
            if index is None:
                raise NotExplainedError(f"{name} is a {type(metadata).__name__}")
            self._layers.append((name, index))

    def make(self, max_seq_len: int) -> AttnMetadata:
        """The metadata of a step whose longest sequence has ``max_seq_len`` tokens."""
        made: list[Any] = []
        for part in self._parts:
            made.append(part.made(max_seq_len, made))
        return {name: made[index] for name, index in self._layers}

    def _add(self, value: Any, path: str) -> int | None:
        """The index of ``value`` among the parts, after its own; None for a leaf."""
        if id(value) in self._index_of:
            return self._index_of[id(value)]
        members = self._members_of(value, path)
        if members is None:
            return None
        bounds: list[Any] = []
        parts: list[tuple[Any, int]] = []
        for name, member in members.items():
            inner = (
                f"{path}.[{name}]"
                if isinstance(value, list | tuple)
                else (f"{path}.{name}")
            )
            index = self._add(member, inner)
            if index is not None:
                parts.append((name, index))
            elif self._is_bound(inner):
                bounds.append(name)
        self._index_of[id(value)] = len(self._parts)
        part = _Part(type(value), members, tuple(bounds), tuple(parts))
        self._parts.append(part)
        return len(self._parts) - 1

    def _members_of(self, value: Any, path: str) -> dict[Any, Any] | None:
        """The members of what is made anew; None for what stays as it is."""
        if type(value) is dict:
            return dict(value)
        if type(value) in (list, tuple):
            return dict(enumerate(value))
        if isinstance(value, torch.Tensor | type | Enum) or callable(value):
            return None
        is_dataclass = dataclasses.is_dataclass(value)
        if not is_dataclass and not self._is_made_anew(path):
            return None
        if not hasattr(value, "__dict__"):
            raise NotExplainedError(
                f"{path} is a {type(value).__name__}, which has no attributes to copy"
            )
        members = dict(vars(value))
        if is_dataclass:
            _require_compared(path, members, dataclasses.fields(value))
        return members

    def _is_made_anew(self, path: str) -> bool:
        field = self._fields.get(path)
        return field is not None and field.is_made_anew

    def _is_bound(self, path: str) -> bool:
        field = self._fields.get(path)
        if field is None:
            raise NotExplainedError(f"{path} was not judged")
        if field.field_class in _AS_CAPTURED:
            return False
        if not field.is_longest:
            raise NotExplainedError(
                f"{path} is {field.field_class.value}, and no step's longest sequence"
            )
        return True


def _require_compared(
    path: str, members: Mapping[str, Any], fields: tuple[dataclasses.Field[Any], ...]
) -> None:
    """A dataclass is compared by its fields alone, so it must hold nothing else."""
    others = sorted(members.keys() - {field.name for field in fields})
    if others:
        raise NotExplainedError(
            f"{path} holds {', '.join(others)}, which is no field of its class"
        )


_AS_CAPTURED = (FieldClass.EXACT, FieldClass.IDENTITY)
