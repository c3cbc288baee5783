"""Remove recorded nodes one by one: the comparison must notice each.

A node whose absence nothing shows is dead for that batch: what it writes is
written again before anything reads it, or already holds what it would write.
"""

from collections.abc import Sequence

from graphparity.conformance.decode_batches import DecodeBatch
from graphparity.conformance.node_mutations.poisoned_step import (
    Outcome,
    PoisonedStep,
    poisoned_step,
)
from graphparity.conformance.subjects.subject import Subject
from graphparity.fastpath.recorders import POISON_BYTE, EmulatedGraph, Node

POISON_BYTES = (POISON_BYTE, 0x00)
"""What the graph's own allocations hold in place of what a node would have written:
huge numbers and true, then 0 and false."""


def unnoticed_nodes(
    subject: Subject, batch: DecodeBatch, candidates: Sequence[str] | None = None
) -> list[str]:
    """The nodes of ``batch``'s recording whose removal the comparison misses.

    Args:
        subject: whose recordings lose their nodes.
        batch: the step to replay without each node in turn.
        candidates: the nodes to remove, as this returned them; None for all.
    """
    with poisoned_step(subject, batch) as step:
        graph = step.graph
        if graph is None:
            return []
        return [
            node.describe()
            for node in graph.nodes
            if candidates is None or node.describe() in candidates
            if _is_unnoticed(step, graph, node)
        ]


def _is_unnoticed(step: PoisonedStep, graph: EmulatedGraph, node: Node) -> bool:
    return all(
        step.outcome_of(graph.without(node.index, poison_byte=byte))
        is Outcome.UNNOTICED
        for byte in POISON_BYTES
    )
