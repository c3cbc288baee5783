"""The memory of one group: images of it, poison, and whose an address is."""

from collections.abc import Iterable, Mapping

import numpy as np
import torch

from graphparity.fastpath.group_build import GroupBuild

MemoryImage = Mapping[str, torch.Tensor]
"""Path -> a copy of that buffer's contents."""
Span = tuple[int, int]
"""First address, and the one past the last."""

_PATTERN_SIZE = 4093
"""Random values that repeat, with a period that is no buffer's width."""


def image_of(memory: Mapping[str, torch.Tensor]) -> MemoryImage:
    """A copy of every buffer's contents."""
    return {path: tensor.clone() for path, tensor in memory.items()}


def restore(memory: Mapping[str, torch.Tensor], image: MemoryImage) -> None:
    """Put every buffer's contents back to ``image``."""
    for path, tensor in memory.items():
        tensor.copy_(image[path])


def poison(memory: Mapping[str, torch.Tensor], seed: int, bound: int) -> None:
    """Fill buffers with random values below ``bound``: one that is wrongly read as a
    row's index leads to a wrong row, and not to a stranger's memory.
    """
    rng = np.random.default_rng(seed)
    for tensor in memory.values():
        pattern = torch.from_numpy(rng.integers(0, bound, size=_PATTERN_SIZE))
        values = pattern.to(tensor.device).repeat(-(-tensor.numel() // len(pattern)))
        values = values[: tensor.numel()].view(tensor.shape)
        tensor.copy_(values % 2 if tensor.dtype is torch.bool else values)


def memory_of(build: GroupBuild) -> dict[str, torch.Tensor]:
    """Inputs and outputs by path; an output of the same path is the output's."""
    return {**build.inputs, **build.outputs}


def same_content(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether two tensors hold the same bits, as far as values tell."""
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return False
    if torch.equal(actual, expected):
        return True
    if not actual.dtype.is_floating_point:
        return False
    both_nan = actual.isnan() & expected.isnan()
    return bool((both_nan | (actual == expected)).all())


def changed_paths(before: MemoryImage, after: MemoryImage) -> list[str]:
    """The buffers whose contents differ between two images."""
    return [path for path in before if not same_content(before[path], after[path])]


def span_of(tensor: torch.Tensor) -> Span:
    """The address range of a tensor's storage."""
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()


def is_inside(address: int, spans: Iterable[Span]) -> bool:
    """Whether ``address`` lies in one of ``spans``."""
    return any(first <= address < end for first, end in spans)


def owner_of(address: int, memory: Mapping[str, torch.Tensor]) -> str:
    """Path of the buffer that holds ``address``; "" if none does."""
    for path, tensor in memory.items():
        if is_inside(address, [span_of(tensor)]):
            return path
    return ""
