"""Which of a builder's tensors its builds write, found by building.

Only those are outputs, and may be poisoned: a constant that a build indexes with is
none.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

import torch

from graphparity.fastpath.proving.group_memory import (
    MemoryImage,
    changed_paths,
    image_of,
)
from graphparity.fastpath.runtime_batch import StepRows

Stage = Callable[[StepRows], Callable[[], object]]
"""Writes a step's inputs; returns its build."""


def written_paths(
    owned: Callable[[], Mapping[str, torch.Tensor]],
    stage: Stage,
    batches: Iterable[StepRows],
) -> frozenset[str]:
    """The paths of what eager builds write.

    A tensor is written if its contents differ between ``batches``, or if a build
    overwrites a perturbation of it.

    Args:
        owned: the builder's device tensors, asked anew after each build: a first build
            may allocate what later ones write.
        stage: stages a step of the builder.
        batches: steps that differ in all that a key leaves open.
    """
    written: set[str] = set()
    before: MemoryImage = {}
    for rows in batches:
        stage(rows)()
        memory = owned()
        after = image_of(memory)
        common = {path: image for path, image in before.items() if path in after}
        written |= {*changed_paths(common, after)}
        before = after
        if rows.num_reqs > 1 or not written:
            rest = {path: it for path, it in memory.items() if path not in written}
            written |= {*_overwritten(rest, stage, rows)}
    return frozenset(written)


def _overwritten(
    memory: Mapping[str, torch.Tensor], stage: Stage, rows: StepRows
) -> Iterator[str]:
    """The integer tensors whose perturbation a build overwrites."""
    for path, tensor in sorted(memory.items()):
        if tensor.is_floating_point() or tensor.is_complex():
            continue
        before, build = tensor.clone(), stage(rows)
        perturbed = _perturbed(before)
        tensor.copy_(perturbed)
        build()
        if not torch.equal(tensor, perturbed):
            yield path
        tensor.copy_(before)


def _perturbed(tensor: torch.Tensor) -> torch.Tensor:
    """Other contents, of values that the tensor held, or 0 and 1 where it held one
    value only: no index among them leads far.
    """
    rolled = tensor.flatten().roll(1).view_as(tensor)
    if not torch.equal(rolled, tensor):
        return rolled
    return (tensor == 0).to(tensor.dtype)
