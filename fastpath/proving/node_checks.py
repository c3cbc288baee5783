"""What the nodes of two captures of one build say: the same work, or another.

Pointers into memory that a capture allocated lie elsewhere in every capture. They
are the only parameters that may differ, and each capture may use its own alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from graphparity.fastpath.proving.findings import Finding, at_node
from graphparity.fastpath.proving.group_memory import Span, is_inside
from graphparity.fastpath.proving.verdict import Check
from graphparity.fastpath.recorders.protocol import NodeParameters, RecordedGraph

HOST_KINDS = {
    "host": "it runs a host function at every replay",
    "allocation": "it allocates memory at every replay",
    "free": "it frees memory at every replay",
}


@dataclass(frozen=True)
class CapturedNodes:
    """The nodes of one capture, and the memory it allocated."""

    nodes: Sequence[NodeParameters]
    pool: Sequence[Span]


def captured_nodes(graph: RecordedGraph) -> CapturedNodes:
    """The nodes of ``graph``; without one, nothing points into its memory."""
    nodes = tuple(graph.node_parameters())
    return CapturedNodes(nodes, tuple(graph.pool_spans()) if nodes else ())


def same_for_all_host_values(
    one: CapturedNodes,
    other: CapturedNodes,
    pools: Sequence[Span],
    *,
    carries_bound: bool,
) -> Finding | None:
    """Compare captures with different host values of one key.

    Args:
        one: the recording.
        other: a capture with other host values, at the same addresses.
        pools: the memory of every capture alive; where in it a pointer leads is not
            compared.
        carries_bound: whether the metadata tells its readers a host bound that
            differs between the two; scalars may then differ as well, for the bound
            that is recorded serves every step.
    """
    check = Check.HOST_VALUES
    odd = _structure_differs(one, other)
    if odd is not None:
        return at_node(check, odd, _structure_reason(one, other, odd))
    for node, twin in zip(one.nodes, other.nodes, strict=True):
        for name in _differing_values(node, twin):
            if carries_bound and name not in dict(node.pointers):
                continue
            reason = (
                f"its parameter {name} follows host values of the step: "
                f"{_shown(node, name)} in one batch, {_shown(twin, name)} in another."
            )
            return at_node(check, node, reason)
        for name, address, twin_address in _pointer_pairs(node, twin):
            both_pooled = is_inside(address, pools) and is_inside(twin_address, pools)
            if address != twin_address and not both_pooled:
                reason = f"its {name} lies elsewhere for other host values of the key."
                return at_node(check, node, reason)
    return None


def same_but_for_own_pool(one: CapturedNodes, other: CapturedNodes) -> Finding | None:
    """Compare two captures with the same host values while both are alive."""
    check = Check.MOVED_POOL
    odd = _structure_differs(one, other)
    if odd is not None:
        return at_node(check, odd, "a second capture of one batch records other nodes.")
    for node, twin in zip(one.nodes, other.nodes, strict=True):
        for name in _differing_values(node, twin):
            reason = (
                f"its parameter {name} differs between two captures of one batch: "
                f"{_shown(node, name)}, then {_shown(twin, name)}."
            )
            return at_node(check, node, reason)
        for name, address, twin_address in _pointer_pairs(node, twin):
            pooled = is_inside(address, one.pool), is_inside(twin_address, other.pool)
            if pooled != (True, True) and (any(pooled) or address != twin_address):
                reason = (
                    f"its {name} does not follow the capture's own pool: memory of "
                    "one capture, or one of several buffers, is kept for another."
                )
                return at_node(check, node, reason)
    return None


def host_nodes(captured: CapturedNodes) -> Iterator[Finding]:
    """The nodes that need the host, or manage memory, at every replay."""
    for node in captured.nodes:
        if node.kind in HOST_KINDS:
            reason = f"{HOST_KINDS[node.kind]}."
            yield at_node(Check.RECORDABLE_NODES, node, reason)


def _structure_differs(
    one: CapturedNodes, other: CapturedNodes
) -> NodeParameters | None:
    """The first node that the other capture lacks or has another in place of."""
    for node, twin in zip(one.nodes, other.nodes, strict=False):
        if (node.kind, node.name) != (twin.kind, twin.name):
            return node
    longer = max(one.nodes, other.nodes, key=len)
    shorter = min(len(one.nodes), len(other.nodes))
    return longer[shorter] if len(longer) > shorter else None


def _structure_reason(
    one: CapturedNodes, other: CapturedNodes, node: NodeParameters
) -> str:
    return (
        f"the host plans the work: {len(one.nodes)} nodes in one batch and "
        f"{len(other.nodes)} in another of one key, which differ from {node.name} on."
    )


def _differing_values(node: NodeParameters, twin: NodeParameters) -> Iterator[str]:
    values, twin_values = dict(node.values), dict(twin.values)
    for name in values | twin_values:
        if values.get(name) != twin_values.get(name):
            yield name


def _pointer_pairs(
    node: NodeParameters, twin: NodeParameters
) -> Iterator[tuple[str, int, int]]:
    pointers, twin_pointers = dict(node.pointers), dict(twin.pointers)
    for name in pointers | twin_pointers:
        yield name, pointers.get(name, 0), twin_pointers.get(name, 0)


def _shown(node: NodeParameters, name: str) -> str:
    value = dict(node.values).get(name)
    is_typed = isinstance(value, tuple) and len(value) == 2
    return str(value[1] if is_typed and isinstance(value, tuple) else value)
