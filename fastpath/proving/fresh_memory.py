"""What a build leaves undefined: elements that hold whatever fresh memory held.

Some kernels allocate more than they write (FlashAttention 3's schedule rounds the
batch up to four requests). Such elements are found by building eagerly twice, over
fresh memory filled with one byte and then with another.
"""

from collections.abc import Callable, Collection
from typing import TypeVar

import torch

T = TypeVar("T")

FILLS = (0x00, 0xFF)
"""What fresh memory holds before the first build and before the second."""

_SIZES = (*range(512, 8192, 512), *(2**power for power in range(13, 20)))
"""Bytes: every size of a small block up to 8 KiB, then powers of two. A freed block of
a size that is not filled would hold what an earlier build left in it."""
_BLOCKS = 8
"""Blocks of each size, more than a build allocates at a time."""


def build_over_fills(
    devices: Collection[torch.device], build: Callable[[], T]
) -> tuple[T, T]:
    """What ``build`` gives over ``FILLS[0]`` and over ``FILLS[1]`` in fresh memory.

    Args:
        devices: where it builds. Without a GPU among them it is built once, and both
            results are that one.
        build: one eager build, from the same state each time.
    """
    gpus = [device for device in devices if device.type == "cuda"]
    if not gpus:
        return (built := build()), built
    first, second = (_build_over(gpus, byte, build) for byte in FILLS)
    return first, second


def _build_over(gpus: Collection[torch.device], byte: int, build: Callable[[], T]) -> T:
    for gpu in gpus:
        _fill_fresh_memory(gpu, byte)
    return build()


def _fill_fresh_memory(device: torch.device, byte: int) -> None:
    """Leave ``byte`` in the blocks that the GPU's caching allocator hands out next."""
    blocks = [
        torch.full((size,), byte, dtype=torch.uint8, device=device)
        for size in _SIZES
        for _ in range(_BLOCKS)
    ]
    del blocks


def define_as(
    actual: torch.Tensor, first: torch.Tensor, second: torch.Tensor
) -> torch.Tensor:
    """``first``, but with ``actual``'s value in every element that is undefined.

    An element is undefined if it holds the very bytes that fresh memory held, both
    times; one that differs in any other way is a difference.

    Args:
        actual: what is compared with an eager build, for example a replay's result.
        first: the eager build's result over ``FILLS[0]`` in fresh memory.
        second: the same over ``FILLS[1]``.
    """
    if not first.shape == second.shape == actual.shape or torch.equal(first, second):
        return first
    undefined = _holds(first, FILLS[0]) & _holds(second, FILLS[1])
    return torch.where(undefined, actual, first)


def _holds(tensor: torch.Tensor, byte: int) -> torch.Tensor:
    """Whether each element is made of ``byte`` alone."""
    elements = tensor.contiguous().view(-1, 1).view(torch.uint8)
    return (elements == byte).all(dim=1).view(tensor.shape)
