"""A replay does what the build would do, on the memory of the capture."""

import functools
import gc
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphparity.fastpath.recorders import EmulatedRecorder

DEVICE = torch.device("cpu:0")


@pytest.fixture
def x() -> torch.Tensor:
    """Device memory that builds read."""
    return torch.arange(8, dtype=torch.int32)


@pytest.fixture
def out() -> torch.Tensor:
    """Device memory that builds write."""
    return torch.full((8,), -7, dtype=torch.int32)


@pytest.fixture
def recorder(x: torch.Tensor, out: torch.Tensor) -> EmulatedRecorder:
    """A recorder whose device memory is `x` and `out`."""
    return EmulatedRecorder(DEVICE, [x, out])


# --- random programs -------------------------------------------------------

NUM_BUFFERS, WIDTH = 3, 6


Program = list[tuple[str, int, int, int]]


def functional(fn: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Store a functional result in the target buffer."""
    return lambda target, a, b: target.copy_(fn(a, b))


STEPS = {
    "add": functional(lambda a, b: a + b),
    "sub_scalar": functional(lambda a, b: a * 2 - 3),
    "where": functional(lambda a, b: torch.where(a > b, a, b)),
    "where_scalar": functional(lambda a, b: torch.where(a > b, a, -1)),
    "cumsum": functional(lambda a, b: a.cumsum(0)),
    "sort": functional(lambda a, b: a.sort(stable=True).values),
    "flip_view": functional(lambda a, b: a.view(2, 3).t().reshape(-1)),
    "max_dim": functional(lambda a, b: torch.stack([a, b]).max(dim=0).values),
    "gather": functional(lambda a, b: a[b.remainder(WIDTH)]),
    "arange": functional(lambda a, b: torch.arange(WIDTH, device=a.device) + a),
    "full_like": functional(lambda a, b: torch.full_like(a, 4) - b),
    "new_zeros": functional(lambda a, b: a.new_zeros(WIDTH).add_(b)),
    "cast": functional(lambda a, b: a.to(torch.float32).div(2).floor().to(a.dtype)),
    "add_": lambda target, a, b: target.add_(a),
    "clamp_": lambda target, a, b: target.clamp_(min=-50, max=50),
    "fill_slice": lambda target, a, b: target[2:4].fill_(9),
    "store_slice": lambda target, a, b: target[1:3].copy_(a[3:5]),
    "mask_store": lambda target, a, b: target.__setitem__(a > 2, -1),
    "transpose_": lambda target, a, b: target.view(2, 3)[:, :2].t().mul_(2),
    "unsqueeze_": lambda target, a, b: target[:].unsqueeze_(0).add_(1),
    "out_cumsum": lambda target, a, b: torch.cumsum(a.clone(), 0, out=target),
    "out_add": lambda target, a, b: torch.add(a.clone(), b.clone(), out=target),
    "scatter_": lambda target, a, b: target.scatter_add_(
        0, a.remainder(WIDTH), b.clone()
    ),
    "split": lambda target, a, b: [part.add_(1) for part in target.split([2, 4])],
}


def buffer_indices() -> st.SearchStrategy[int]:
    """Index of a buffer, shrinking to the first."""
    return st.integers(0, NUM_BUFFERS - 1)


def programs() -> st.SearchStrategy[Any]:
    """Lists of (step, target, a, b), shrinking to short ones of early steps."""
    indices = buffer_indices()
    step = st.tuples(st.sampled_from(sorted(STEPS)), indices, indices, indices)
    return st.lists(step, min_size=1, max_size=8)


def contents() -> st.SearchStrategy[Any]:
    """Values of all buffers, shrinking to zeros."""
    row = st.lists(st.integers(-20, 20), min_size=WIDTH, max_size=WIDTH)
    return st.lists(row, min_size=NUM_BUFFERS, max_size=NUM_BUFFERS)


def run_program(program: Program, buffers: list[torch.Tensor]) -> None:
    """Run the steps of a program on its buffers."""
    for name, target, a, b in program:
        STEPS[name](buffers[target], buffers[a], buffers[b])


@settings(max_examples=150, deadline=None)
@given(program=programs(), recorded_with=contents(), replayed_with=contents())
def test_replay_of_a_random_program_equals_eager_on_new_contents(
    program: Program, recorded_with: list[list[int]], replayed_with: list[list[int]]
) -> None:
    """For every program P and contents A, B: capture(P) on A, replay on B == P on B."""
    buffers = [torch.tensor(row) for row in recorded_with]
    expected = [torch.tensor(row) for row in replayed_with]
    recorder = EmulatedRecorder(DEVICE, buffers)
    graph, _ = recorder.capture(lambda: run_program(program, buffers))
    assert [buffer.tolist() for buffer in buffers] == recorded_with
    for _ in range(2):
        for buffer, row in zip(buffers, replayed_with, strict=True):
            buffer.copy_(torch.tensor(row))
        graph.replay()
    run_program(program, expected)
    actual = [buffer.tolist() for buffer in buffers]
    assert actual == [buffer.tolist() for buffer in expected]


@pytest.mark.parametrize("name", sorted(STEPS))
def test_every_step_of_the_random_programs_is_recorded(name: str) -> None:
    """Each step leaves at least one node, so its replay is not empty."""
    buffers = [torch.ones(WIDTH, dtype=torch.int64) for _ in range(NUM_BUFFERS)]
    recorder = EmulatedRecorder(DEVICE, buffers)
    graph, _ = recorder.capture(lambda: STEPS[name](*buffers))
    assert graph.num_nodes > 0


# --- what freezes ----------------------------------------------------------


def test_addresses_are_constant_over_replays(
    recorder: EmulatedRecorder, x: torch.Tensor, out: torch.Tensor
) -> None:
    """Results of the build are at the addresses of the capture after each replay."""

    def build() -> object:
        made = torch.full((4,), 3, dtype=torch.int32, device=DEVICE)
        return x * 2, made, x.cumsum(0), x.sort(descending=True)

    graph, (double, made, sums, (values, order)) = recorder.capture(build)
    results = (double, made, sums, values, order)
    addresses = [result.data_ptr() for result in results]
    for start in (5, 100):
        x.copy_(torch.arange(start, start + 8))
        graph.replay()
        assert [result.data_ptr() for result in results] == addresses
        assert torch.equal(double, x * 2)
        assert made.tolist() == [3] * 4
        assert torch.equal(sums, x.cumsum(0))
        assert torch.equal(values, x.flip(0))
        assert order.tolist() == list(range(7, -1, -1))


@pytest.mark.parametrize("kind", ["python", "numpy", "host tensor"])
def test_a_host_scalar_keeps_the_value_it_had_at_capture(
    recorder: EmulatedRecorder, x: torch.Tensor, out: torch.Tensor, kind: str
) -> None:
    """A scalar operand is a value of the recording, wherever it came from."""
    array, tensor = np.array([5]), torch.tensor(5, dtype=torch.int32)
    scalars = {
        "python": lambda: int(array[0]),
        "numpy": lambda: array[0],
        "host tensor": lambda: tensor,
    }
    graph, _ = recorder.capture(lambda: torch.add(x, scalars[kind](), out=out))
    array[0] = 1000
    tensor.fill_(1000)
    graph.replay()
    assert out.tolist() == (x + 5).tolist()


def test_host_work_runs_once_and_is_not_recorded(
    recorder: EmulatedRecorder, x: torch.Tensor, out: torch.Tensor
) -> None:
    """Torch work on host tensors has no nodes; what it decided is frozen."""
    host, calls = torch.tensor([1, 4, 2]), []

    def build() -> object:
        calls.append(1)
        out.copy_(x + host.max().item())

    graph, _ = recorder.capture(build)
    host.fill_(50)
    graph.replay()
    graph.replay()
    assert len(calls) == 1
    assert [node.name for node in graph.nodes] == [
        "aten.add.Tensor",
        "aten.copy_.default",
    ]
    assert out.tolist() == (x + 4).tolist()


def test_declared_pinned_memory_is_read_again_at_replay(
    x: torch.Tensor, out: torch.Tensor
) -> None:
    """A non-blocking copy from pinned memory brings what the host wrote last."""
    pinned = torch.zeros(8, dtype=torch.int32)
    recorder = EmulatedRecorder(DEVICE, [x, out], [pinned])

    def build() -> object:
        pinned.fill_(1)
        out.copy_(pinned, non_blocking=True)
        return pinned.to(DEVICE, torch.int64, non_blocking=True), pinned.is_pinned()

    graph, (copied, is_pinned) = recorder.capture(build)
    assert is_pinned
    assert out.tolist() == [-7] * 8
    pinned.fill_(2)
    graph.replay()
    assert out.tolist() == copied.tolist() == [2] * 8
    assert pinned.tolist() == [2] * 8


def test_reshaping_the_caller_s_tensor_object_does_not_change_the_recording(
    recorder: EmulatedRecorder, x: torch.Tensor, out: torch.Tensor
) -> None:
    """Operands are recorded by address, shape and strides, not as Python objects."""
    view = out.view(2, 4)

    def build() -> object:
        view.add_(1)
        view.t_()

    graph, _ = recorder.capture(build)
    assert [node.name for node in graph.nodes] == ["aten.add_.Tensor"]
    view.unsqueeze_(0)
    out.zero_()
    graph.replay()
    graph.replay()
    assert out.tolist() == [2] * 8
    assert view.shape == (1, 4, 2)


def test_list_operands_are_recorded_by_value(
    recorder: EmulatedRecorder, x: torch.Tensor, out: torch.Tensor
) -> None:
    """A list that the caller changes later is not what a replay reads."""
    parts = [x[:4], x[4:]]

    def build() -> object:
        out.copy_(torch.cat(parts))
        parts.clear()

    graph, _ = recorder.capture(build)
    graph.replay()
    assert out.tolist() == x.tolist()


def test_a_build_in_inference_mode_replays_outside_of_it(
    recorder: EmulatedRecorder, x: torch.Tensor, out: torch.Tensor
) -> None:
    """Inference tensors made by the build are written by replays and by poison."""

    @torch.inference_mode()
    def build() -> object:
        made = x + 1
        made.add_(1)
        out.copy_(made)
        return made

    graph, made = recorder.capture(build)
    x.add_(10)
    graph.replay()
    assert out.tolist() == made.tolist() == (x + 2).tolist()
    with torch.inference_mode():
        graph.replay()


def test_memory_of_an_earlier_graph_is_device_memory_in_a_later_capture(
    recorder: EmulatedRecorder, x: torch.Tensor, out: torch.Tensor
) -> None:
    """Metadata of one recording may be an operand of the next while it lives."""
    first, made = recorder.capture(lambda: x + 1)
    second, _ = recorder.capture(lambda: out.copy_(made))
    x.add_(10)
    first.replay()
    second.replay()
    assert out.tolist() == (x + 1).tolist()


def test_an_operation_that_writes_and_returns_is_replayed_whole(
    recorder: EmulatedRecorder, x: torch.Tensor, out: torch.Tensor
) -> None:
    """Batch norm updates statistics in place and returns new memory."""
    batch_norm = torch.ops.aten._native_batch_norm_legit
    mean, rows = torch.zeros(3), torch.tensor([[1.0, 2, 3], [3, 4, 5]])
    variance = torch.ones(3)
    recorder = EmulatedRecorder(DEVICE, [mean, variance, rows])

    def build() -> object:
        return batch_norm(rows, None, None, mean, variance, True, 0.1, 1e-5)[0]

    graph, actual = recorder.capture(build)
    assert mean.tolist() == [0.0] * 3
    rows.mul_(3)
    graph.replay()
    expected_mean, expected_variance = torch.zeros(3), torch.ones(3)
    expected = torch.nn.functional.batch_norm(
        rows, expected_mean, expected_variance, training=True
    )
    assert torch.equal(actual, expected)
    assert torch.equal(mean, expected_mean)
    assert torch.equal(variance, expected_variance)


# --- a capture does not execute --------------------------------------------


def test_a_capture_leaves_declared_memory_unchanged(
    recorder: EmulatedRecorder, x: torch.Tensor, out: torch.Tensor
) -> None:
    """Every storage that a node writes holds afterwards what it held before."""
    before = x.tolist(), out.tolist()

    def build() -> object:
        x.add_(1)
        out.copy_(x)
        out[2:4] = 5

    graph, _ = recorder.capture(build)
    assert (x.tolist(), out.tolist()) == before
    assert graph.num_nodes == 3


def test_a_warm_up_executes(
    recorder: EmulatedRecorder, x: torch.Tensor, out: torch.Tensor
) -> None:
    """Unlike a capture, a warm-up writes what the build writes."""
    recorder.warm_up(lambda: out.copy_(x))
    recorder.synchronize()
    assert out.tolist() == x.tolist()


def test_memory_allocated_by_a_capture_is_poisoned(
    recorder: EmulatedRecorder, x: torch.Tensor
) -> None:
    """After capture, and where no node writes after a replay, it is the poison."""
    graph, (filled, unfilled) = recorder.capture(
        lambda: (x + 1, torch.empty(2, dtype=torch.int32, device=DEVICE))
    )
    assert filled.tolist() == [0x7F7F7F7F] * 8
    filled.zero_()
    unfilled.zero_()
    graph.replay()
    assert filled.tolist() == (x + 1).tolist()
    assert unfilled.tolist() == [0x7F7F7F7F] * 2
    assert graph.num_nodes == 1


def test_the_poison_byte_can_be_chosen(x: torch.Tensor) -> None:
    """0xff makes integers -1 and floating-point numbers not a number."""
    recorder = EmulatedRecorder(DEVICE, [x], poison_byte=0xFF)
    _, (integers, reals) = recorder.capture(lambda: (x + 1, x / 2))
    assert integers.tolist() == [-1] * 8
    assert reals.isnan().all()


# --- nodes -----------------------------------------------------------------


def test_nodes_name_the_operation_its_memory_and_the_caller_s_line(
    recorder: EmulatedRecorder, x: torch.Tensor, out: torch.Tensor
) -> None:
    """A listing leads from a node to the line that asked for it."""

    def build() -> None:
        out.copy_(x)

    graph, _ = recorder.capture(build)
    (node,) = graph.nodes
    line = build.__code__.co_firstlineno + 1
    assert (node.index, node.kind, node.name) == (0, "copy", "aten.copy_.default")
    assert node.location == f"{__file__}:{line}"
    assert [read.data_ptr() for read in node.reads] == [x.data_ptr()]
    assert [written.data_ptr() for written in node.writes] == [out.data_ptr()]
    assert node.name in graph.describe()[0]
    assert node.location in repr(graph)


def test_removing_any_node_changes_the_result(
    recorder: EmulatedRecorder, x: torch.Tensor, out: torch.Tensor
) -> None:
    """`without` lacks exactly one node and leaves the others as they were."""

    def build() -> object:
        made = x + 1
        made.mul_(2)
        out.copy_(made)

    graph, _ = recorder.capture(build)
    expected = ((x + 1) * 2).tolist()
    for index in range(graph.num_nodes):
        fewer = graph.without(index)
        assert fewer.num_nodes == graph.num_nodes - 1
        assert graph.nodes[index] not in fewer.nodes
        out.fill_(-7)
        fewer.replay()
        assert out.tolist() != expected
    graph.replay()
    assert out.tolist() == expected


@pytest.mark.parametrize("index", [-1, 1, 99])
def test_removing_a_node_that_is_not_there_names_the_range(
    recorder: EmulatedRecorder, x: torch.Tensor, out: torch.Tensor, index: int
) -> None:
    """The error carries the index and the number of nodes."""
    graph, _ = recorder.capture(lambda: out.copy_(x))
    with pytest.raises(IndexError, match=rf"index {index} .* num_nodes = 1"):
        graph.without(index)


def test_a_build_without_device_work_has_no_nodes(recorder: EmulatedRecorder) -> None:
    """Such a graph needs no launch, and its replay does nothing."""
    graph, value = recorder.capture(lambda: 5)
    graph.replay()
    assert (graph.num_nodes, value) == (0, 5)


def test_a_released_graph_refuses_to_replay(
    recorder: EmulatedRecorder, x: torch.Tensor, out: torch.Tensor
) -> None:
    """The message says what to do; a graph made from it still replays."""
    graph, _ = recorder.capture(lambda: (out.copy_(x), x + 1))
    other = graph.without(1)
    graph.release()
    assert graph.num_nodes == 0
    assert "released" in repr(graph)
    with pytest.raises(RuntimeError, match=r"released.*capture it again\.$"):
        graph.replay()
    with pytest.raises(RuntimeError, match="released"):
        graph.without(0)
    other.replay()
    assert out.tolist() == x.tolist()


def test_memory_of_a_released_graph_is_no_device_memory(
    recorder: EmulatedRecorder, x: torch.Tensor, out: torch.Tensor
) -> None:
    """A later capture does not mistake reused host storages for it."""
    graph, made = recorder.capture(lambda: x + 1)
    graph.release()
    gc.collect()
    with pytest.raises(RuntimeError, match="host tensor that is not declared"):
        recorder.capture(lambda: out.add_(made))


def test_operations_that_write_no_element_are_no_nodes(
    recorder: EmulatedRecorder, x: torch.Tensor, out: torch.Tensor
) -> None:
    """As builders fill the tail of a step without padding; CUDA launches nothing."""

    def build() -> None:
        out[:8].copy_(x)
        out[8:].fill_(0)
        out[8:].copy_(x[8:] + 1)

    graph, _ = recorder.capture(build)
    assert graph.num_nodes == 1


def test_a_node_may_run_otherwise_or_in_another_order(
    recorder: EmulatedRecorder, x: torch.Tensor, out: torch.Tensor
) -> None:
    """On the same memory; the graph itself stays as it was recorded."""
    graph, _ = recorder.capture(lambda: (out.copy_(x), out.mul_(2), out.add_(1)))
    expected = [(it + 1) * 2 for it in x.tolist()]
    graph.in_order([0, 2, 1]).replay()
    assert out.tolist() == expected
    graph.running(1, functools.partial(out.mul_, 5)).replay()
    assert out.tolist() == [it * 5 + 1 for it in x.tolist()]
    graph.replay()
    assert (graph.order, out.tolist()) == ((0, 1, 2), [it * 2 + 1 for it in x.tolist()])


@pytest.mark.parametrize("order", [[0], [0, 0], [1, 2]])
def test_an_order_names_each_node_once(
    recorder: EmulatedRecorder, x: torch.Tensor, out: torch.Tensor, order: list[int]
) -> None:
    """The error shows the order and the number of nodes."""
    graph, _ = recorder.capture(lambda: (out.copy_(x), out.mul_(2)))
    with pytest.raises(ValueError, match=rf"{re.escape(str(order))} .* the 2 nodes"):
        graph.in_order(order)
