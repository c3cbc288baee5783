"""Remove recorded nodes one by one: the comparison must notice each.

A node whose absence nothing shows is dead for that batch: what it writes is
written again before anything reads it, or already holds what it would write.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from graphparity.conformance.checks import BuiltStep, build_step, compare_builds
from graphparity.conformance.decode_batches import DecodeBatch
from graphparity.conformance.memory import image_of, poison_against, restore
from graphparity.conformance.staging import StagedStep, stage
from graphparity.conformance.subjects.subject import MeteredGraph, Subject
from graphparity.fastpath.recorders import POISON_BYTE, EmulatedGraph, Node

POISON_BYTES = (POISON_BYTE, 0x00)
"""What the graph's own allocations hold in place of what a node would have written:
huge numbers and true, then 0 and false."""


def unnoticed_nodes(
    subject: Subject, batch: DecodeBatch, candidates: Sequence[str] | None = None
) -> list[str]:
    """The nodes of ``batch``'s recording whose removal the comparison misses.

    Outputs are poisoned so that no element starts with the value that the whole
    recording gives it.

    Args:
        subject: whose recordings lose their nodes.
        batch: the step to replay without each node in turn.
        candidates: the nodes to remove, as this returned them; None for all.
    """
    staged = stage(subject, batch)
    clean = image_of(subject.memory)
    whole = build_step(subject, staged, subject.state)
    restore(subject.memory, clean)
    written = subject.builder_outputs | subject.staging_buffers
    poison_against(subject.memory, written, whole.image)
    poisoned = image_of(subject.memory)
    expected = build_step(subject, staged, subject.eager_state)
    restore(subject.memory, poisoned)
    metered = _replayed_graph(subject, staged)
    if metered is None:
        restore(subject.memory, clean)
        return []
    found = []
    for node in _emulated(metered).nodes:
        if candidates is None or node.describe() in candidates:
            noticed = False
            for byte in POISON_BYTES:
                restore(subject.memory, poisoned)
                with _removed(metered, node, byte):
                    noticed = noticed or _is_noticed(subject, staged, expected)
            if not noticed:
                found.append(node.describe())
    restore(subject.memory, clean)
    return found


def _replayed_graph(subject: Subject, staged: StagedStep) -> MeteredGraph | None:
    """The graph that the state replays for this step; None if it has no nodes."""
    subject.recorder.last_replayed = None
    built = build_step(subject, staged, subject.state)
    metered = subject.recorder.last_replayed
    if not built.num_replays:
        raise AssertionError(
            f"{subject.name} replayed nothing, so it has no node to remove: {staged}"
        )
    return metered


def _emulated(metered: MeteredGraph) -> EmulatedGraph:
    """The recorded graph, whose nodes only the emulated recorder can remove."""
    if not isinstance(metered.graph, EmulatedGraph):
        raise TypeError(
            f"nodes cannot be removed from a {type(metered.graph).__name__}: record "
            "with --recorder emulated."
        )
    return metered.graph


@contextmanager
def _removed(metered: MeteredGraph, node: Node, poison_byte: int) -> Iterator[None]:
    """While active, replays of the graph lack ``node``."""
    whole = _emulated(metered)
    metered.graph = whole.without(node.index, poison_byte=poison_byte)
    try:
        yield
    finally:
        metered.graph = whole


def _is_noticed(subject: Subject, staged: StagedStep, expected: BuiltStep) -> bool:
    """Whether the state's step differs from ``expected``, or cannot run at all."""
    try:
        actual = build_step(subject, staged, subject.state)
    except (IndexError, RuntimeError):
        return True
    return bool(compare_builds(subject, actual, expected, subject.limits.max_model_len))
