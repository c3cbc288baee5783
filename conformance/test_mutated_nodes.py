"""Any recorded node made wrong in any one way must make the comparison fail."""

import pytest

from graphparity.conformance.node_mutations.check import every_mutation_is_noticed
from graphparity.conformance.subjects.subject import Subject

pytestmark = pytest.mark.emulated_recorder_only


def test_every_mutation_of_every_node_is_noticed(subject: Subject) -> None:
    """Swapped neighbours, scalars frozen at another value, pointers shifted by a row:
    some batch shows each, unless it is shown, or listed, to be without effect.
    """
    if not any(graph.num_nodes for graph in subject.recorder.graphs):
        pytest.skip(f"{subject.name} records no device work: no node to make wrong")
    every_mutation_is_noticed(subject)
