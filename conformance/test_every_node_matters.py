"""Removing any single recorded node must make the comparison fail."""

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from graphparity.conformance.decode_batches import DecodeBatch, decode_batches
from graphparity.conformance.node_mutations.removal import unnoticed_nodes
from graphparity.conformance.subjects.subject import Subject
from graphparity.fastpath.graph_key import GraphKey

pytestmark = pytest.mark.emulated_recorder_only

MAX_BATCHES = 32
"""Batches that a node's removal may stay unnoticed for before it counts as dead."""


def test_every_node_matters(subject: Subject, key: GraphKey) -> None:
    """Over a few batches, the absence of every node of the key is noticed.

    Only nodes that the subject lists as dead without padding are exempt, and only
    in keys without padding.
    """
    is_padded = key.num_reqs < key.num_reqs_after_padding
    dead = () if is_padded else subject.dead_without_padding
    remaining: list[str] | None = None

    @settings(
        max_examples=MAX_BATCHES,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(batch=decode_batches(subject.limits, key))
    def remove_nodes(batch: DecodeBatch) -> None:
        nonlocal remaining
        if remaining != []:
            found = unnoticed_nodes(subject, batch, remaining)
            remaining = [it for it in found if not any(node.is_of(it) for node in dead)]

    remove_nodes()
    assert remaining == [], (
        f"{len(remaining or ())} recorded node(s) of {key} can be removed and "
        f"{MAX_BATCHES} batches show nothing: {remaining}"
    )
