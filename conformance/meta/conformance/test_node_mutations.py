"""Wrong recordings are made, noticed and reported, and none reaches past its memory."""

# ruff: noqa: ANN001, ANN202, N803  # Triton kernels: no host types, constexprs in capitals

import importlib.util
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
import torch

from graphparity.conformance.checks import check_step, span
from graphparity.conformance.comparer import ParityError
from graphparity.conformance.decode_batches import DecodeBatch
from graphparity.conformance.meta.conformance import faulty_subjects as faults
from graphparity.conformance.node_mutations import sweep as sweeps
from graphparity.conformance.node_mutations.check import every_mutation_is_noticed
from graphparity.conformance.node_mutations.evidence import SAME_ROWS
from graphparity.conformance.node_mutations.kernel_accesses import (
    OutsideMemoryError,
    accesses_of,
    kept_inside,
    stops_of_kernels,
)
from graphparity.conformance.node_mutations.mutation import (
    MutationKind,
    mutations_of,
)
from graphparity.conformance.node_mutations.operands import operands_of, with_operand
from graphparity.conformance.node_mutations.poisoned_step import (
    Outcome,
    PoisonedStep,
    poisoned_step,
)
from graphparity.conformance.node_mutations.touched_memory import (
    may_overlap,
    share_memory,
)
from graphparity.conformance.subjects.registry import fresh_subject
from graphparity.conformance.subjects.subject import IndifferentOperand, Subject
from graphparity.fastpath.graph_key import GraphKey
from graphparity.fastpath.recorders import EmulatedGraph, EmulatedRecorder

Maker = Callable[[str, int, str], Subject]

BATCH = DecodeBatch(GraphKey(3, 4, 6, 8), (5, 16, 17), (3, 1, 2), seed=1)
UNNOTICED: dict[str, tuple[Maker, str]] = {
    "scalar": (
        faults.bound_out_of_reach,
        r"aten\.clamp_\.default \[.*\]: max: a scalar frozen at another value: unnotic",
    ),
    "swap": (
        faults.order_without_effect,
        r"aten\.add_\.Tensor \[.*\]: aten\.add_\.Tensor \[.*\]: two neigh.*: unnoticed",
    ),
    "shift": (
        faults.row_without_effect,
        r"aten\.clamp\.default \[.*\]: self: a pointer shifted by one row: unnoticed",
    ),
}
"""Kind -> a sound subject where such a fault has no effect, and the report."""


def made(maker: Maker) -> Subject:
    """The subject of ``maker`` at query length 2."""
    return maker(faults.name_of(maker, 2), 2, "emulated")


@pytest.mark.parametrize(("maker", "line"), UNNOTICED.values(), ids=UNNOTICED)
def test_what_no_batch_shows_is_reported(maker: Maker, line: str) -> None:
    """The subject is sound, so it is the fault that the suite would miss."""
    subject = made(maker)
    check_step(subject, BATCH)
    with pytest.raises(ParityError, match=line):
        every_mutation_is_noticed(subject)


def test_what_the_subject_lists_is_not_reported() -> None:
    """What else the needless node's absence leaves unnoticed still is."""
    listed = IndifferentOperand("aten.clamp_.default", "", "max", "out of reach")
    subject = made(faults.bound_out_of_reach)
    entries = (*subject.indifferent_operands, listed)
    with pytest.raises(ParityError, match="self: a pointer") as error:
        every_mutation_is_noticed(replace(subject, indifferent_operands=entries))
    assert ": max: " not in str(error.value)


def test_an_entry_of_no_operand_is_reported() -> None:
    """A list must not outlive what it was written for."""
    stale = IndifferentOperand("aten.bucketize.Tensor", "", "left", "long gone")
    subject = fresh_subject("torch-decode:2")
    entries = (*subject.indifferent_operands, stale)
    with pytest.raises(ParityError, match=r"bucketize\.Tensor left: listed, but"):
        every_mutation_is_noticed(replace(subject, indifferent_operands=entries))


def test_every_kind_of_fault_is_noticed_on_every_key_swept() -> None:
    """Sites are spread over keys, and none is left out."""
    subject, tried = fresh_subject("torch-decode:2"), set()
    outcome_of = PoisonedStep.outcome_of

    def noting(step: Any, wrong: EmulatedGraph) -> Outcome:
        tried.add(step._staged.input_batch.num_reqs)
        return outcome_of(step, wrong)

    with mock.patch.object(PoisonedStep, "outcome_of", noting):
        sweep = every_mutation_is_noticed(subject)
    assert all(sweep.num_noticed(kind) >= 10 for kind in MutationKind)
    assert tried == {key.num_reqs for key in sweeps.keys_swept(subject)}
    assert any(SAME_ROWS in outcome for _, outcome in sweep.counts)


def test_a_sweep_without_a_fault_proves_nothing() -> None:
    """It fails, although nothing is left unnoticed."""
    subject = replace(fresh_subject("torch-decode:2"), indifferent_operands=())
    with (
        mock.patch.object(sweeps, "mutations_of", return_value=[]),
        pytest.raises(ParityError, match="faults noticed: 0, but should be 1 or more"),
    ):
        every_mutation_is_noticed(subject)


def test_nodes_that_no_key_swept_has_are_reported() -> None:
    """Keys share their nodes; where they do not, other keys have to be swept."""
    subject = fresh_subject("torch-decode:2")
    subject.recorder.capture(lambda: subject.input_buffers.positions.add_(1))
    with pytest.raises(ParityError, match=r"aten\.add_\.Tensor \[.*\]: in no key"):
        every_mutation_is_noticed(subject)


def test_memory_and_recording_are_left_as_they_were() -> None:
    """Wrong recordings are made beside the sound one."""
    subject = fresh_subject("torch-decode:2")
    with poisoned_step(subject, BATCH) as step:
        graph = step.graph
        assert graph is not None
        outcomes = {step.outcome_of(it.make()) for it in mutations_of(graph)}
        assert step.outcome_of(graph) is Outcome.UNNOTICED
    assert Outcome.NOTICED in outcomes
    check_step(subject, BATCH)


@pytest.fixture
def out() -> torch.Tensor:
    """Device memory that builds write, four rows of two."""
    return torch.zeros(4, 2, dtype=torch.int64)


@pytest.fixture
def recorder(out: torch.Tensor) -> EmulatedRecorder:
    """A recorder whose device memory is ``out``."""
    return EmulatedRecorder(torch.device("cpu:0"), [out])


def test_nodes_on_other_memory_commute(
    recorder: EmulatedRecorder, out: torch.Tensor
) -> None:
    """Decided by elements, not by buffers: columns of one row do not overlap."""
    graph, _ = recorder.capture(
        lambda: (out[:, 0].fill_(1), out[:, 1].fill_(2), out[2].fill_(3))
    )
    first, second, third = graph.nodes
    assert not may_overlap(first, second)
    assert may_overlap(first, third)
    assert may_overlap(second, third)
    swaps = [it for it in mutations_of(graph) if it.site.kind is MutationKind.SWAP]
    assert [it.positions for it in swaps] == [(1, 2)]


def test_a_fault_that_resizes_a_result_is_refused(
    recorder: EmulatedRecorder, out: torch.Tensor
) -> None:
    """A replay never resizes; the recording's own memory stays where it is."""
    graph, _ = recorder.capture(lambda: out.sum(dim=1))
    place = graph.pool_spans()
    (wrong,) = [it for it in mutations_of(graph) if it.site.operand == "dim[0]"]
    with pytest.raises(RuntimeError, match="results of another shape"):
        wrong.make().replay()
    graph.replay()
    assert graph.pool_spans() == place


def test_operands_are_replaced_one_at_a_time(
    recorder: EmulatedRecorder, out: torch.Tensor
) -> None:
    """The node itself keeps what it was given."""
    graph, _ = recorder.capture(lambda: out.add_(2, alpha=3))
    operands = {it.name: it for it in operands_of(graph.nodes[0])}
    assert operands["other"].value == 2
    run = with_operand(graph.nodes[0], operands["alpha"].path, 5)
    graph.running(0, run).replay()
    assert out.tolist() == [[10, 10]] * 4
    graph.replay()
    assert out.tolist() == [[16, 16]] * 4


if importlib.util.find_spec("triton") is not None:
    import triton
    import triton.language as tl

    @triton.jit  # type: ignore[untyped-decorator]  # Triton is untyped
    def _copy_kernel(  # type: ignore[no-untyped-def]  # as above
        x_ptr, out_ptr, unread_ptr, num_elements, BLOCK: tl.constexpr
    ):
        offsets = tl.arange(0, BLOCK)
        mask = offsets < num_elements
        tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask), mask=mask)


needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed"
)


@pytest.fixture
def copied() -> tuple[EmulatedGraph, dict[str, torch.Tensor]]:
    """A recording of two kernels that read the same buffer, and the memory."""
    memory = {name: torch.arange(8) for name in ("x", "first", "second")}
    recorder = EmulatedRecorder(torch.device("cpu:0"), memory.values())
    x, first, second = memory.values()

    def build() -> None:
        _copy_kernel[(1,)](x, first, second, 4, BLOCK=8)
        _copy_kernel[(1,)](x, second, first, 4, BLOCK=8)

    graph, _ = recorder.capture(build)
    return graph, memory


@needs_triton
def test_what_a_kernel_touches_is_seen_lane_by_lane(
    copied: tuple[EmulatedGraph, dict[str, torch.Tensor]],
) -> None:
    """Masked lanes touch nothing, and so does a pointer that is not followed."""
    graph, memory = copied
    load, store = accesses_of(graph.nodes[0])
    begin, _ = span(memory["x"])
    assert load.addresses.tolist() == [begin + 8 * lane for lane in range(4)]
    begin, _ = span(memory["first"])
    assert store.addresses.tolist() == [begin + 8 * lane for lane in range(4)]
    assert (load.is_store, store.is_store, load.num_bytes) == (False, True, 8)


@needs_triton
def test_kernels_that_only_read_the_same_commute(
    copied: tuple[EmulatedGraph, dict[str, torch.Tensor]],
) -> None:
    """By their arguments they may overlap; by what they touch they do not."""
    graph, _ = copied
    assert may_overlap(*graph.nodes)
    assert not share_memory(*graph.nodes)


@needs_triton
def test_a_kernel_is_stopped_before_it_leaves_its_memory(
    copied: tuple[EmulatedGraph, dict[str, torch.Tensor]],
) -> None:
    """It stores nothing, and the error says what it was about to do."""
    graph, memory = copied
    begin, _ = span(memory["first"])
    spans = [span(memory["x"]), (begin, begin + 8)]
    memory["first"].fill_(-1)
    with pytest.raises(stops_of_kernels()) as error, kept_inside(spans):
        graph.replay()
    assert isinstance(error.value.__cause__, OutsideMemoryError)
    assert memory["first"].tolist() == [-1] * 8


@needs_triton
def test_a_pointer_is_shifted_within_its_buffer(
    copied: tuple[EmulatedGraph, dict[str, torch.Tensor]],
) -> None:
    """A kernel's pointer to a whole buffer loses a row rather than leave it."""
    graph, memory = copied
    wrong = next(it for it in mutations_of(graph) if it.site.operand == "x_ptr")
    wrong.make().replay()
    assert memory["first"].tolist()[:4] == [1, 2, 3, 4]
    graph.replay()
    assert memory["first"].tolist()[:4] == [0, 1, 2, 3]
