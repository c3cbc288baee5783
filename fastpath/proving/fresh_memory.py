"""What a build leaves undefined: elements that hold whatever fresh memory held.

Some kernels allocate more than they write (FlashAttention 3's schedule rounds the
batch up to four requests). Such elements differ between two eager builds of one step
when fresh memory does, so they are found by building twice over different leftovers.
"""

import torch

FILLS = (0x00, 0xFF)
"""What fresh memory holds before the first build and before the second."""

_SIZES = tuple(512 * 2**power for power in range(11))
_BLOCKS = 8
"""Blocks of each size, more than a build allocates at a time."""


def fill_fresh_memory(device: torch.device, byte: int) -> None:
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

    Args:
        actual: what is compared with an eager build, for example a replay's result.
        first: the eager build's result.
        second: the same over other leftovers in fresh memory.
    """
    if not first.shape == second.shape == actual.shape or torch.equal(first, second):
        return first
    return torch.where(first == second, first, actual)
