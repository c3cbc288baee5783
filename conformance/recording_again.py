"""Recordings are given up with the KV cache, and recorded again as the first time.

An engine records more than once: memory profiling throws its graphs away, a KV cache is
allocated anew, and sleep ends. What a first recording left behind in a builder, on the
host or in a pool must not change the second.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from graphparity.conformance.checks import check_step
from graphparity.conformance.comparer import Difference
from graphparity.conformance.decode_batches import DecodeBatch, UnrecordedBatch
from graphparity.conformance.parity_errors import raise_found
from graphparity.conformance.subjects.subject import Subject
from graphparity.conformance.tally import Tally
from graphparity.fastpath.graph_key import GraphKey
from graphparity.fastpath.metadata_graphs import Recording

Nodes = Sequence[tuple[Any, ...]]
"""What each node of a graph does, its addresses left out."""


def recordings_of(subject: Subject) -> Mapping[GraphKey, Recording]:
    """The recordings of a state that tells of them; none of another."""
    graphs: Any = vars(subject.state).get("graphs")
    return dict(getattr(graphs, "recordings", {}))


def nodes_of(recordings: Mapping[GraphKey, Recording]) -> dict[GraphKey, Nodes]:
    """What each recording does, to compare with another recording of the key."""
    return {
        key: [(it.name, it.kind, it.values) for it in recording.graph.node_parameters()]
        for key, recording in recordings.items()
    }


def batch_of(key: GraphKey, longest: int) -> DecodeBatch:
    """A step of unequal rows, in another order than the state's."""
    lengths = [key.query_len + 1 + 5 * row for row in range(key.num_reqs)]
    return DecodeBatch(
        key,
        tuple(min(length, longest) for length in lengths),
        tuple(reversed(range(key.num_reqs))),
        seed=key.num_reqs,
    )


def recorded_again_as_the_first_time(subject: Subject, tally: Tally) -> None:
    """After a new KV cache no step is replayed and no graph holds memory; a second
    recording has the keys and the nodes of the first, and its replays equal eager.

    Raises:
        ParityError: they do not.
    """
    first = recordings_of(subject)
    if not first:
        return
    nodes = nodes_of(first)
    for state in (subject.state, subject.eager_state):
        state.initialize_kv_cache(subject.kv_cache_config, subject.block_tables)
    longest = subject.limits.max_model_len
    batches = [batch_of(key, longest) for key in subject.graph_keys]
    check_step(subject, UnrecordedBatch(batches[0]), tally)
    raise_found(subject, "the released graphs", _kept(first))
    subject.record()
    again = nodes_of(recordings_of(subject))
    raise_found(subject, "the second recording against the first", _new(nodes, again))
    for batch in batches:
        check_step(subject, batch, tally)


def _kept(released: Mapping[GraphKey, Recording]) -> list[Difference]:
    return [
        Difference(str(key), f"{it.graph.num_nodes} nodes after its release", "none")
        for key, it in released.items()
        if it.graph.num_nodes
    ]


def _new(
    first: Mapping[GraphKey, Nodes], again: Mapping[GraphKey, Nodes]
) -> list[Difference]:
    missing = [
        Difference(str(key), "missing", "recorded") for key in first.keys() - again
    ]
    return missing + [
        Difference(str(key), "recorded otherwise", "as the first time")
        for key in again
        if again[key] != first.get(key)
    ]
