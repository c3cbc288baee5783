"""Which memory a node touches, and whether two nodes may run in either order.

Of an operation it is what its schema says: the elements of what it reads and writes.
Of a kernel it is at most its arguments; what a launch touches is seen by running it.
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import torch

from graphparity.conformance.node_mutations.kernel_accesses import accesses_of
from graphparity.fastpath.recorders import Node

Touched = npt.NDArray[np.uint64]
"""Addresses of bytes, sorted, each once."""


def may_overlap(first: Node, second: Node) -> bool:
    """Whether one may write what the other touches, by what they were given."""
    return _conflict(_given(first), _given(second))


def share_memory(first: Node, second: Node) -> bool:
    """As ``may_overlap``, by what kernels touch from the memory as it is; both run, in
    this order.
    """
    return _conflict(_seen(first), _seen(second))


def _conflict(first: tuple[Touched, Touched], second: tuple[Touched, Touched]) -> bool:
    (reads, writes), (other_reads, other_writes) = first, second
    return any(
        np.intersect1d(ours, theirs).size
        for ours, theirs in (
            (writes, other_writes),
            (writes, other_reads),
            (reads, other_writes),
        )
    )


def _given(node: Node) -> tuple[Touched, Touched]:
    return _bytes(map(_addresses, node.reads)), _bytes(map(_addresses, node.writes))


def _seen(node: Node) -> tuple[Touched, Touched]:
    if node.kind != "kernel":
        node.run()
        return _given(node)
    loads: list[Touched] = []
    stores: list[Touched] = []
    for access in accesses_of(node):
        lanes = access.addresses[:, None]
        every = np.add(
            lanes, np.arange(access.num_bytes, dtype=np.uint64), dtype=np.uint64
        )
        (stores if access.is_store else loads).append(every.ravel())
    return _bytes(loads), _bytes(stores)


def _bytes(parts: Iterable[Touched]) -> Touched:
    found = list(parts)
    return np.unique(np.concatenate(found)) if found else np.empty(0, np.uint64)


def _addresses(tensor: torch.Tensor) -> Touched:
    """Of every byte of every element."""
    offsets = np.zeros((), dtype=np.int64)
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        offsets = np.add.outer(offsets, np.arange(size) * stride)
    width = tensor.element_size()
    first = tensor.data_ptr() + offsets.ravel() * width
    return (first[:, None] + np.arange(width)).ravel().astype(np.uint64)
