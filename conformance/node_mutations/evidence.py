"""Why a fault that the comparison did not notice had no effect on one step.

What a launch touches is seen by running it, so no list of names says which nodes
commute or which arguments a kernel leaves alone.
"""

import numpy as np
import torch

from graphparity.conformance.node_mutations.kernel_accesses import (
    Access,
    accesses_of,
)
from graphparity.conformance.node_mutations.mutation import Mutation, MutationKind
from graphparity.conformance.node_mutations.poisoned_step import PoisonedStep
from graphparity.conformance.node_mutations.touched_memory import share_memory
from graphparity.fastpath.recorders import EmulatedGraph

COMMUTE = "the two nodes share no memory that one of them writes"
SAME_ROWS = "a row on, the same values lie behind the pointer"
NOT_FOLLOWED = "the kernel touches nothing through the pointer"


def why_without_effect(
    step: PoisonedStep, graph: EmulatedGraph, mutation: Mutation
) -> str:
    """The reason, seen on this step; "" where there is none to see."""
    match mutation.site.kind:
        case MutationKind.SWAP:
            first, second = (graph.nodes[at] for at in mutation.positions)
            _run_before(step, graph, mutation.positions[0])
            return "" if share_memory(first, second) else COMMUTE
        case MutationKind.SHIFT:
            _run_before(step, graph, mutation.positions[0])
            if mutation.tensors and _same_values(*mutation.tensors):
                return SAME_ROWS
            return NOT_FOLLOWED if _is_not_followed(step, graph, mutation) else ""
        case MutationKind.SCALAR:
            return ""


def _is_not_followed(
    step: PoisonedStep, graph: EmulatedGraph, mutation: Mutation
) -> bool:
    """Whether a kernel touches the same addresses with the pointer elsewhere."""
    (position,) = mutation.positions
    nodes = graph.nodes[position], mutation.make().nodes[position]
    if nodes[0].kind != "kernel":
        return False
    touched = []
    for node in nodes:
        _run_before(step, graph, position)
        touched.append(accesses_of(node))
    return len(touched[0]) == len(touched[1]) and all(map(_alike, *touched))


def _same_values(tensor: torch.Tensor, moved: torch.Tensor) -> bool:
    """Whether a launch reads the same; a moved pointer may have lost its last row."""
    return torch.equal(tensor[: len(moved)], moved)


def _alike(first: Access, second: Access) -> bool:
    same = np.array_equal(first.addresses, second.addresses)
    return same and first[1:] == second[1:]


def _run_before(step: PoisonedStep, graph: EmulatedGraph, position: int) -> None:
    """Leave memory as a replay finds it when it comes to the node."""
    step.restore()
    for at in graph.order[: graph.order.index(position)]:
        graph.nodes[at].run()
