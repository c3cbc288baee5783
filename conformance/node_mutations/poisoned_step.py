"""One step whose recording is replaced by a wrong one, again and again.

Outputs are poisoned so that no element starts with the value that the sound recording
gives it: what a wrong recording leaves out cannot pass for what it should have
written.

Invariant: every outcome starts from the same memory, which is left as it was found.
A wrong launch may reach past its buffers; it is stopped before it does.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

from graphparity.conformance.checks import (
    BuiltStep,
    build_step,
    compare_builds,
    span,
)
from graphparity.conformance.decode_batches import DecodeBatch
from graphparity.conformance.memory import (
    MemoryImage,
    image_of,
    poison_against,
    restore,
)
from graphparity.conformance.node_mutations.kernel_accesses import (
    Spans,
    kept_inside,
    stops_of_kernels,
)
from graphparity.conformance.staging import StagedStep, stage
from graphparity.conformance.subjects.subject import MeteredGraph, Subject
from graphparity.fastpath.recorders import EmulatedGraph


class Outcome(Enum):
    """What came of a step with a wrong recording."""

    NOTICED = "the comparison failed"
    STOPPED = "an operation refused it, or a kernel was about to leave its memory"
    UNNOTICED = "the comparison passed"


class PoisonedStep:
    """A staged step, its poisoned memory, and the recording that serves it."""

    def __init__(
        self,
        subject: Subject,
        staged: StagedStep,
        expected: BuiltStep,
        poisoned: MemoryImage,
        metered: MeteredGraph | None,
    ) -> None:
        self._subject, self._staged, self._expected = subject, staged, expected
        self._poisoned, self._metered = poisoned, metered

    @property
    def graph(self) -> EmulatedGraph | None:
        """The recording; None where the build has no device work.

        Raises:
            TypeError: another recorder's, whose nodes cannot be changed.
        """
        if self._metered is None:
            return None
        graph = self._metered.graph
        if not isinstance(graph, EmulatedGraph):
            raise TypeError(
                f"nodes of a {type(graph).__name__} cannot be changed: record with "
                "--recorder emulated."
            )
        return graph

    def outcome_of(self, wrong: EmulatedGraph) -> Outcome:
        """Serve the step by a recording made from ``graph``, and compare."""
        assert self._metered is not None, "a build without device work has no node"
        sound, self._metered.graph = self._metered.graph, wrong
        restore(self._subject.memory, self._poisoned)
        stops: tuple[type[Exception], ...] = (IndexError, RuntimeError)
        try:
            with kept_inside(self.spans_of(wrong)):
                actual = build_step(self._subject, self._staged, self._subject.state)
        except (*stops, *stops_of_kernels()):
            return Outcome.STOPPED
        finally:
            self._metered.graph = sound
        worst_case = self._subject.limits.max_model_len
        found = compare_builds(self._subject, actual, self._expected, worst_case)
        return Outcome.NOTICED if found else Outcome.UNNOTICED

    def restore(self) -> None:
        """Put memory back to where every outcome starts."""
        restore(self._subject.memory, self._poisoned)

    def spans_of(self, graph: EmulatedGraph) -> Spans:
        """The memory that a launch of ``graph`` may touch."""
        spans = [span(tensor) for tensor in self._subject.memory.values()]
        return [*spans, *graph.pool_spans()]


@contextmanager
def poisoned_step(
    subject: Subject, batch: DecodeBatch, *, keeps_size: bool = False
) -> Iterator[PoisonedStep]:
    """Stage ``batch`` and poison the outputs; memory is put back when the block ends.

    Args:
        subject: whose state serves the step.
        batch: the step.
        keeps_size: how outputs are poisoned, as ``poison_against`` says.

    Raises:
        AssertionError: the state replays nothing for this step.
    """
    staged = stage(subject, batch)
    clean = image_of(subject.memory)
    try:
        yield _poisoned(subject, staged, clean, keeps_size=keeps_size)
    finally:
        restore(subject.memory, clean)


def _poisoned(
    subject: Subject, staged: StagedStep, clean: MemoryImage, *, keeps_size: bool
) -> PoisonedStep:
    subject.recorder.last_replayed = None
    whole = build_step(subject, staged, subject.state)
    metered = subject.recorder.last_replayed
    if not whole.num_replays:
        raise AssertionError(
            f"{subject.name} replayed nothing, so it has no node to change: {staged}"
        )
    restore(subject.memory, clean)
    written = subject.builder_outputs | subject.staging_buffers
    poison_against(subject.memory, written, whole.image, keeps_size=keeps_size)
    poisoned = image_of(subject.memory)
    expected = build_step(subject, staged, subject.eager_state)
    return PoisonedStep(subject, staged, expected, poisoned, metered)
