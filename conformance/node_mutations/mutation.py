"""The wrong recordings that one recording gives rise to, each with one fault.

- *swap*: two nodes that run one after the other, in the other order;
- *scalar*: a host value frozen at another value, or a launch grid that lacks a program
  (one without any is a node removed);
- *shift*: a pointer that begins one row later, or earlier where no row follows.

A site is a fault's place in the build and not in one recording: recordings of many keys
have it. What has no other value, or no row on either side, has no fault of that kind.
"""

from collections.abc import Callable, Iterator
from enum import Enum
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_map_only

from graphparity.conformance.node_mutations.operands import (
    GRID,
    Operand,
    Run,
    operands_of,
    with_operand,
)
from graphparity.conformance.node_mutations.touched_memory import may_overlap
from graphparity.fastpath.recorders import EmulatedGraph, Node

_NO_SCHEMA = SimpleNamespace(arguments=())


class MutationKind(Enum):
    """What is wrong with the recording."""

    SWAP = "two neighbouring nodes swapped"
    SCALAR = "a scalar frozen at another value"
    SHIFT = "a pointer shifted by one row"


class Site(NamedTuple):
    """Where in a build a fault lies."""

    kind: MutationKind
    node: str
    """The node's name and the line that records it."""
    operand: str
    """The operand's name; of a swap, the other node."""
    occurrence: int
    """Which of the nodes that this line records."""

    def __str__(self) -> str:
        again = f" (occurrence {self.occurrence + 1})" if self.occurrence else ""
        return f"{self.node}{again}: {self.operand}: {self.kind.value}"


class Mutation(NamedTuple):
    """One wrong recording, made when asked for."""

    site: Site
    positions: tuple[int, ...]
    """Of the node in the recording, or of the two that are swapped."""
    make: Callable[[], EmulatedGraph]
    tensors: tuple[torch.Tensor, ...] = ()
    """Of a shift, the tensor as it was and as it is shifted."""


def mutations_of(graph: EmulatedGraph) -> list[Mutation]:
    """Every wrong recording of ``graph``, in the order of its nodes."""
    sites = _node_sites(graph)
    return [*_swaps(graph, sites), *_operand_mutations(graph, sites)]


def nodes_named(graph: EmulatedGraph) -> list[str]:
    """Name and line of every node."""
    return [f"{node.name} [{node.location}]" for node in graph.nodes]


def _node_sites(graph: EmulatedGraph) -> list[tuple[str, int]]:
    names = nodes_named(graph)
    return [(name, names[:i].count(name)) for i, name in enumerate(names)]


def _swaps(graph: EmulatedGraph, sites: list[tuple[str, int]]) -> Iterator[Mutation]:
    """Neighbours that share no memory may run in any order, and are left alone."""
    order = list(graph.order)
    for place, (first, second) in enumerate(pairwise(order)):
        if may_overlap(graph.nodes[first], graph.nodes[second]):
            name, occurrence = sites[first]
            site = Site(MutationKind.SWAP, name, sites[second][0], occurrence)
            swapped = [*order[:place], second, first, *order[place + 2 :]]
            yield Mutation(site, (first, second), partial(graph.in_order, swapped))


def _operand_mutations(
    graph: EmulatedGraph, sites: list[tuple[str, int]]
) -> Iterator[Mutation]:
    for position, node in enumerate(graph.nodes):
        name, occurrence = sites[position]
        for operand in operands_of(node):
            wrong, kind = _wrong_value(node, operand)
            if wrong is not None:
                site = Site(kind, name, operand.name, occurrence)
                run = _without_resize(with_operand(node, operand.path, wrong))
                yield Mutation(
                    site,
                    (position,),
                    partial(graph.running, position, run),
                    (operand.value, wrong) if kind is MutationKind.SHIFT else (),
                )


def _wrong_value(node: Node, operand: Operand) -> tuple[Any, MutationKind]:
    """Another value of the operand's own type; None if it can have none."""
    value = operand.value
    if isinstance(value, torch.Tensor):
        is_pointer = node.kind == "kernel"
        return shifted(value, is_pointer=is_pointer), MutationKind.SHIFT
    if operand.path[:1] == GRID:
        return (value - 1 if value > 1 else None), MutationKind.SCALAR
    if isinstance(value, bool):
        return not value, MutationKind.SCALAR
    if isinstance(value, (int, float)):
        return value - 1 if value > 1 else value + 1, MutationKind.SCALAR
    return None, MutationKind.SCALAR


def _without_resize(run: Run) -> Run:
    """``run``, or what refuses to: an operation that would make results of another
    shape resizes the recording's, which no replay does.
    """
    is_result = {
        argument.name: argument.is_out
        for argument in getattr(run.func, "_schema", _NO_SCHEMA).arguments
    }
    results = {name: it for name, it in run.keywords.items() if is_result.get(name)}
    if not results:
        return run
    try:
        made = _on_meta(partial(run.func, *run.args, **run.keywords), results)
    except (IndexError, RuntimeError):
        return _REFUSAL
    as_recorded = all(it.shape == results[name].shape for name, it in made.items())
    return run if as_recorded else _REFUSAL


def _on_meta(run: Run, results: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The results of an operation on tensors without memory, as it shapes them."""
    made = {
        name: torch.empty(0, dtype=it.dtype, device="meta")
        for name, it in results.items()
    }
    args, kwargs = tree_map_only(
        torch.Tensor, lambda it: it.to("meta"), (run.args, run.keywords)
    )
    run.func(*args, **{**kwargs, **made})
    return made


def _refuse_to_run() -> None:
    raise RuntimeError("the operation makes results of another shape")


_REFUSAL: Run = partial(_refuse_to_run)


def shifted(tensor: torch.Tensor, *, is_pointer: bool) -> torch.Tensor | None:
    """The tensor a row further, or else a row back; None if it fits neither way.

    Args:
        tensor: at least one row.
        is_pointer: a kernel's, of which only the beginning counts: it may lose a row.
    """
    if not tensor.dim() or not tensor.numel():
        return None
    storage = tensor.untyped_storage()
    row, size = tensor.stride(0), list(tensor.size())
    num_elements = storage.nbytes() // tensor.element_size()
    first = tensor.storage_offset()
    last = first + sum(
        (n - 1) * stride for n, stride in zip(size, tensor.stride(), strict=True)
    )
    alias = torch.empty(0, dtype=tensor.dtype)
    if row and last + row < num_elements:
        return alias.set_(storage, first + row, size, tensor.stride())
    if row and first >= row:
        return alias.set_(storage, first - row, size, tensor.stride())
    if row and is_pointer and size[0] > 1:
        size[0] -= 1
        return alias.set_(storage, first + row, size, tensor.stride())
    return None
