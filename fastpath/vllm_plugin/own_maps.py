"""The maps of a build in parts, told apart from what forward graphs read.

A serial build makes one token-to-request map. Of a forked one every branch makes its
own, and so do groups that are built eagerly beside a replay, in a buffer that the
serial build leaves alone. Nothing that was captured over a serial build reads such a
buffer, so neither its contents nor its place can differ to any harm; the values that
the metadata finds there may not.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch

from graphparity.fastpath.proving.group_memory import (
    MemoryImage,
    Span,
    is_inside,
    same_content,
    span_of,
)
from graphparity.fastpath.proving.leaves import Leaf
from graphparity.fastpath.proving.replays import BuildResult


def as_serial(
    replayed: BuildResult,
    serial: BuildResult,
    before: MemoryImage,
    memory: Mapping[str, torch.Tensor],
) -> BuildResult:
    """``replayed``, as if the maps of its parts were the serial build's one.

    Args:
        replayed: what a replay left that is forked, or partly built eagerly.
        serial: what the serial build left, from the same memory.
        before: that memory.
        memory: the buffers of runner and builders.
    """
    left_alone = {
        path: span_of(tensor)
        for path, tensor in memory.items()
        if path.startswith("builders.")
        and same_content(serial.memory[path], before[path])
    }
    moved = {
        path: _moved(leaf, serial.leaves.get(path), left_alone)
        for path, leaf in replayed.leaves.items()
    }
    maps = {owner for owner, _ in moved.values()}
    return BuildResult(
        {**replayed.memory, **{path: before[path] for path in maps if path}},
        {path: leaf for path, (_, leaf) in moved.items()},
    )


def _moved(
    leaf: Leaf, serial: Leaf | None, left_alone: Mapping[str, Span]
) -> tuple[str, Leaf]:
    """The buffer that is a map of the leaf's own, and the leaf where the serial build
    has it; "" and the leaf itself if it has none.
    """
    if serial is None or leaf.place is None or serial.place is None:
        return "", leaf
    if leaf.place == serial.place:
        return "", leaf
    elsewhere = replace(leaf.place, address=serial.place.address)
    for path, span in left_alone.items():
        if is_inside(leaf.place.address, [span]) and elsewhere == serial.place:
            return path, replace(leaf, place=elsewhere)
    return "", leaf
