"""A recorded node tells its parameters apart from the addresses among them."""

from collections.abc import Callable

import pytest
import torch

from graphparity.fastpath.recorders import EmulatedGraph, EmulatedRecorder

DEVICE = torch.device("cpu:0")


class Memory:
    """Device and pinned memory of a program."""

    def __init__(self) -> None:
        self.x = torch.arange(8, dtype=torch.int32)
        self.out = torch.zeros(8, dtype=torch.int32)
        self.pinned = torch.ones(8, dtype=torch.int32)
        self.recorder = EmulatedRecorder(DEVICE, [self.x, self.out], [self.pinned])

    def capture(self, build: Callable[[], object]) -> EmulatedGraph:
        """Capture a build."""
        return self.recorder.capture(build)[0]


@pytest.fixture
def memory() -> Memory:
    """Memory of its own for each test."""
    return Memory()


def test_scalars_are_values_and_tensors_are_pointers(memory: Memory) -> None:
    """Layouts are values too; what is written is named."""
    graph = memory.capture(lambda: memory.out[2:].add_(memory.x[:6], alpha=3))
    (node,) = graph.node_parameters()
    assert (node.name, node.kind) == ("aten.add_.Tensor", "op")
    assert node.location.startswith(f"{__file__}:")
    assert dict(node.values)["alpha"] == ("int", "3")
    assert dict(node.values)["self"] == ("torch.int32", (6,), (1,))
    assert dict(node.pointers) == {
        "self": memory.out.data_ptr() + 8,
        "other": memory.x.data_ptr(),
    }
    assert node.written == {"self"}


def test_two_captures_differ_where_their_scalars_do(memory: Memory) -> None:
    """Equal programs have equal parameters."""

    def parameters(fill: int) -> object:
        return memory.capture(lambda: memory.out.fill_(fill)).node_parameters()

    assert parameters(3) == parameters(3)
    assert parameters(3) != parameters(4)
    assert parameters(1) != parameters(True)


def test_a_host_scalar_tensor_is_its_value(memory: Memory) -> None:
    """Its address says nothing: a replay has the value."""
    graph = memory.capture(lambda: memory.out.add_(torch.tensor(5)))
    values = dict(graph.node_parameters()[0].values)
    assert values["other"] == ("torch.int64", (), "5")
    assert "other" not in dict(graph.node_parameters()[0].pointers)


def test_pool_spans_hold_the_allocations_of_the_capture(memory: Memory) -> None:
    """Results point there; persistent memory does not; none are left on release."""
    graph = memory.capture(lambda: memory.out.copy_(memory.x + 1))
    add, copy = graph.node_parameters()
    ((first, end),) = graph.pool_spans()
    assert end - first == memory.x.nbytes
    assert dict(add.pointers)["result[0]"] == dict(copy.pointers)["src"] == first
    assert not first <= dict(copy.pointers)["self"] < end
    graph.release()
    assert list(graph.pool_spans()) == list(graph.node_parameters()) == []


def test_a_copy_from_pinned_memory_names_its_source(memory: Memory) -> None:
    """It is a kind of its own, with the bytes that it reads."""
    graph = memory.capture(
        lambda: memory.out[:4].copy_(memory.pinned[4:], non_blocking=True)
    )
    (node,) = graph.node_parameters()
    assert node.kind == "host-copy"
    assert dict(node.pointers)["source"] == memory.pinned.data_ptr() + 16
    assert dict(node.values)["nbytes"] == 16


def test_a_copy_to_pinned_memory_is_a_copy(memory: Memory) -> None:
    """Only what a replay reads from the host can be stale."""
    graph = memory.capture(lambda: memory.pinned.copy_(memory.x, non_blocking=True))
    assert graph.node_parameters()[0].kind == "copy"


def test_lists_of_tensors_are_told_apart_by_index(memory: Memory) -> None:
    """Their length is a value."""
    graph = memory.capture(lambda: torch._foreach_add_([memory.out, memory.x], 1))
    (node,) = graph.node_parameters()
    assert dict(node.values)["len(self)"] == ("int", "2")
    assert dict(node.pointers) == {
        "self[0]": memory.out.data_ptr(),
        "self[1]": memory.x.data_ptr(),
    }
