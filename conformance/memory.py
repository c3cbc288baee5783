"""Images of a subject's device memory: taken, restored, poisoned, compared.

Two builds of one step are run from the same image, so whatever differs afterwards
is what the builds did differently: in live rows, in padding, in buffers that only
one of them wrote.
"""

from collections.abc import Iterable, Mapping

import numpy as np
import torch

from graphparity.fastpath.proving.group_memory import same_content

Memory = Mapping[str, torch.Tensor]
"""Path -> device tensor, each a whole buffer."""
MemoryImage = Mapping[str, torch.Tensor]
"""Path -> a copy of that buffer's contents."""


def image_of(memory: Memory) -> MemoryImage:
    """A copy of every buffer's contents."""
    return {path: tensor.clone() for path, tensor in memory.items()}


def restore(memory: Memory, image: MemoryImage) -> None:
    """Put every buffer's contents back to ``image``."""
    for path, tensor in memory.items():
        tensor.copy_(image[path])


def changed_paths(before: MemoryImage, after: MemoryImage) -> frozenset[str]:
    """The buffers whose contents differ between two images."""
    return frozenset(
        path for path in before if not same_content(before[path], after[path])
    )


def poison(memory: Memory, paths: Iterable[str], seed: int, num_rows: int) -> None:
    """Fill the buffers at ``paths`` with random wrong values.

    Integers are drawn below ``num_rows``, so a kernel that wrongly takes one for a
    row index reads a wrong row and not a stranger's memory.
    """
    rng = np.random.default_rng(seed)
    for path in paths:
        tensor = memory[path]
        values = torch.from_numpy(rng.integers(0, num_rows, size=tensor.shape))
        tensor.copy_(values % 2 if tensor.dtype is torch.bool else values)


def poison_against(
    memory: Memory,
    paths: Iterable[str],
    image: MemoryImage,
    *,
    keeps_size: bool = False,
) -> None:
    """Fill the buffers at ``paths`` so that no element has its value in ``image``.

    Args:
        memory: the buffers by path.
        paths: those to fill.
        image: what they shall not hold.
        keeps_size: each element becomes one more, as a neighbouring step's would be;
            otherwise 0 becomes 1, and everything else 0.
    """
    for path in paths:
        content = image[path]
        more = keeps_size and content.dtype is not torch.bool
        memory[path].copy_(content + 1 if more else content == 0)
