"""Host values of the metadata: equal, a bound at its worst case, or frozen wrongly."""

from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any

import torch

from graphparity.fastpath.proving.field_log import FieldLog
from graphparity.fastpath.proving.findings import Finding
from graphparity.fastpath.proving.leaves import Leaf
from graphparity.fastpath.proving.verdict import Check


def carries_bound(one: Mapping[str, Leaf], other: Mapping[str, Leaf]) -> bool:
    """Whether the metadata of two builds tells its readers different host bounds: host
    numbers that differ, all in one direction.
    """
    signs = {
        (leaf.value > other[path].value) - (leaf.value < other[path].value)
        for path, leaf in one.items()
        if leaf.is_number and path in other and other[path].is_number
    }
    return len(signs - {0}) == 1


def host_fields_equal(
    replayed: Mapping[str, Leaf],
    eager: Mapping[str, Leaf],
    is_device: Callable[[Leaf], bool],
    log: FieldLog,
    *,
    is_worst_case: bool,
    longest: int,
) -> Iterator[Finding]:
    """Compare the host values that a recording returns with an eager build's.

    Args:
        replayed: leaves of the recorded metadata.
        eager: leaves of the eager build's.
        is_device: tells device tensors, which are compared elsewhere.
        log: takes what the leaves show.
        is_worst_case: whether no sequence of the step is longer than those recorded
            with; only then must a bound hold.
        longest: tokens of the longest sequence of the eager build's step.
    """
    for path in sorted(replayed.keys() | eager.keys()):
        mine, theirs = replayed.get(path), eager.get(path)
        if mine is None or theirs is None:
            reason = f"{path} is in the metadata of some batches of a key only."
        elif is_device(mine):
            continue
        else:
            reason = _difference(path, mine, theirs, log, is_worst_case=is_worst_case)
            log.leaves[path].is_longest &= theirs.is_number and theirs.value == longest
        if reason:
            yield Finding(Check.REPLAY_EQUALS_EAGER, reason, field=path)


def _difference(
    path: str, mine: Leaf, theirs: Leaf, log: FieldLog, *, is_worst_case: bool
) -> str:
    seen = log.leaves[path]
    if mine.is_opaque and _has_identity(mine.value):
        seen.is_opaque = True
        seen.is_same_object &= mine.value is theirs.value
        return _opaque_difference(path, mine, theirs)
    if _is_equal(mine.value, theirs.value) or not is_worst_case:
        return ""
    if _exceeds(mine, theirs):
        seen.exceeds = True
        return ""
    return (
        f"the recorded {path} is {_shown(mine)} where an eager build of the key has "
        f"{_shown(theirs)}, and it is no bound at its worst case."
    )


def _has_identity(value: Any) -> bool:
    """Whether equality says nothing about an object's contents."""
    equality: object = type(value).__eq__
    return equality is object.__eq__ and not isinstance(value, Enum)


def _opaque_difference(path: str, mine: Leaf, theirs: Leaf) -> str:
    if mine.value is theirs.value:
        return ""
    kind = type(mine.value).__name__
    if type(theirs.value) is not type(mine.value):
        return f"{path} is a {kind} in some batches of a key only."
    if mine.is_walked and not callable(mine.value):
        return ""  # its attributes are leaves of their own
    return f"every build makes {path} anew, a {kind} that cannot be looked into."


def _is_equal(mine: Any, theirs: Any) -> bool:
    if isinstance(mine, torch.Tensor) and isinstance(theirs, torch.Tensor):
        return mine.dtype == theirs.dtype and torch.equal(mine, theirs)
    return type(mine) is type(theirs) and bool(mine == theirs)


def _exceeds(mine: Leaf, theirs: Leaf) -> bool:
    """Whether a host number, or every number of a host tensor, is at least eager's."""
    if mine.is_number and theirs.is_number:
        return bool(mine.value >= theirs.value)
    one, other = mine.value, theirs.value
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return False
    if one.shape != other.shape or one.dtype != other.dtype or one.dtype == torch.bool:
        return False
    return bool((one >= other).all())


def _shown(leaf: Leaf) -> str:
    value = leaf.value
    return str(value.tolist()) if isinstance(value, torch.Tensor) else repr(value)
