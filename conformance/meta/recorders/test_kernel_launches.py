"""A launch of an interpreted Triton kernel is one node."""

# ruff: noqa: ANN001, ANN202, N803  # Triton kernels: no host types, constexprs in capitals
# TRITON_INTERPRET is read when Triton is imported

import importlib.util
import os
from collections.abc import Callable, Mapping
from typing import Any

os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
import torch

from graphparity.fastpath.recorders import CaptureError, EmulatedRecorder

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is not installed: nothing to launch", allow_module_level=True)

import triton
import triton.language as tl

DEVICE = torch.device("cpu:0")
BLOCK = 4


@triton.jit
def _add_kernel(x_ptr, out_ptr, addend, num_elements, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < num_elements
    x = tl.load(x_ptr + offsets, mask=mask, other=0)
    tl.store(out_ptr + offsets, x + addend, mask=mask)


@triton.heuristics({"BLOCK": lambda arguments: BLOCK})
@triton.jit
def _heuristic_kernel(x_ptr, out_ptr, num_elements, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < num_elements
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask), mask=mask)


@triton.autotune(configs=[triton.Config({"BLOCK": BLOCK})], key=["num_elements"])
@triton.jit
def _tuned_kernel(x_ptr, out_ptr, num_elements, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < num_elements
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask), mask=mask)


@pytest.fixture
def x() -> torch.Tensor:
    """Device memory that builds read."""
    return torch.arange(6, dtype=torch.int32)


@pytest.fixture
def out() -> torch.Tensor:
    """Device memory that builds write."""
    return torch.full((6,), -7, dtype=torch.int32)


@pytest.fixture
def recorder(x: torch.Tensor, out: torch.Tensor) -> EmulatedRecorder:
    """A recorder whose device memory is `x` and `out`."""
    return EmulatedRecorder(DEVICE, [x, out])


def test_a_launch_is_one_node_that_replays_on_new_contents(
    recorder: EmulatedRecorder, x: torch.Tensor, out: torch.Tensor
) -> None:
    """No operation of the interpreter itself is recorded, and nothing executes."""
    graph, _ = recorder.capture(lambda: _add_kernel[(2,)](x, out, 5, 6, BLOCK=BLOCK))
    (node,) = graph.nodes
    assert (node.kind, node.name) == ("kernel", "triton:_add_kernel")
    assert node.location.startswith(f"{__file__}:")
    assert out.tolist() == [-7] * 6
    x.add_(100)
    graph.replay()
    assert out.tolist() == (x + 5).tolist()


def test_grid_and_scalars_keep_their_values(
    recorder: EmulatedRecorder, x: torch.Tensor, out: torch.Tensor
) -> None:
    """A callable grid is evaluated at capture, and never again."""
    values = {"blocks": 1, "addend": 5}

    def build() -> object:
        grid = lambda arguments: (values["blocks"],)  # noqa: E731  # Triton's own idiom
        _add_kernel[grid](x, out, values["addend"], 6, BLOCK=BLOCK)

    graph, _ = recorder.capture(build)
    values.update(blocks=2, addend=50)
    graph.replay()
    assert out.tolist() == [5, 6, 7, 8, -7, -7]


def test_a_launch_reads_and_writes_memory_of_the_capture(
    recorder: EmulatedRecorder, x: torch.Tensor, out: torch.Tensor
) -> None:
    """Torch operations and launches run in order, on allocations of the build."""

    def build() -> object:
        made = torch.empty_like(x)
        _add_kernel[(2,)](x * 2, made, 1, 6, BLOCK=BLOCK)
        out.copy_(made)

    graph, _ = recorder.capture(build)
    x.add_(10)
    graph.replay()
    assert [node.kind for node in graph.nodes] == ["op", "kernel", "copy"]
    assert out.tolist() == (x * 2 + 1).tolist()


@pytest.mark.parametrize(
    "kernel", [_heuristic_kernel, _tuned_kernel], ids=["heuristics", "autotune"]
)
def test_a_wrapped_kernel_is_one_node(
    recorder: EmulatedRecorder,
    x: torch.Tensor,
    out: torch.Tensor,
    kernel: Mapping[tuple[int], Callable[..., None]],
) -> None:
    """Heuristics and a tuned configuration end in the same launch."""
    graph, _ = recorder.capture(lambda: kernel[(2,)](x, out, 6))
    x.add_(10)
    graph.replay()
    assert graph.num_nodes == 1
    assert out.tolist() == x.tolist()


def test_removing_the_launch_changes_the_result(
    recorder: EmulatedRecorder, x: torch.Tensor, out: torch.Tensor
) -> None:
    """The node is the launch: without it nothing writes the output."""
    graph, _ = recorder.capture(lambda: _add_kernel[(2,)](x, out, 5, 6, BLOCK=BLOCK))
    graph.without(0).replay()
    assert out.tolist() == [-7] * 6


def test_pinned_memory_is_a_kernel_argument_read_at_replay(
    x: torch.Tensor, out: torch.Tensor
) -> None:
    """A kernel reads declared pinned memory in place."""
    recorder = EmulatedRecorder(DEVICE, [out], [x])
    graph, _ = recorder.capture(lambda: _add_kernel[(2,)](x, out, 0, 6, BLOCK=BLOCK))
    x.fill_(3)
    graph.replay()
    assert out.tolist() == [3] * 6


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda host, rotating: host, "not declared"),
        (lambda host, rotating: torch.zeros(6, dtype=torch.int32), "not declared"),
        (lambda host, rotating: host[0], "not declared"),
        (lambda host, rotating: rotating, "rotates"),
        (lambda host, rotating: host.pin_memory(), "during the capture"),
    ],
    ids=["host", "torch.zeros(6)", "host[0]", "rotating", "host.pin_memory()"],
)
def test_a_launch_refuses_host_memory(
    x: torch.Tensor, out: torch.Tensor, make: Callable[..., Any], reason: str
) -> None:
    """A recorded address must be one that the next step still uses."""
    host, rotating = torch.ones_like(x), torch.ones_like(x)
    recorder = EmulatedRecorder(DEVICE, [x, out], rotating_memory=[rotating])

    def build() -> object:
        argument = make(host, rotating)
        _add_kernel[(2,)](argument, out, 0, 6, BLOCK=BLOCK)

    with pytest.raises(CaptureError, match=reason) as caught:
        recorder.capture(build)
    assert caught.value.operation == "triton:_add_kernel"
    assert caught.value.location.startswith(f"{__file__}:")
    graph, _ = recorder.capture(lambda: _add_kernel[(2,)](x, out, 0, 6, BLOCK=BLOCK))
    assert graph.num_nodes == 1


def test_launches_outside_a_capture_are_untouched(
    recorder: EmulatedRecorder, x: torch.Tensor, out: torch.Tensor
) -> None:
    """The hook is gone after a capture, also after a failed one."""
    graph, _ = recorder.capture(lambda: out.copy_(x))
    with pytest.raises(CaptureError):
        recorder.capture(x.tolist)
    _add_kernel[(2,)](x, out, 5, 6, BLOCK=BLOCK)
    assert out.tolist() == (x + 5).tolist()
    assert graph.num_nodes == 1


def test_a_launch_has_its_grid_and_constexprs_among_its_parameters(
    recorder: EmulatedRecorder, x: torch.Tensor, out: torch.Tensor
) -> None:
    """Arguments go by the kernel's own names, tensors by address."""
    graph, _ = recorder.capture(lambda: _add_kernel[(2,)](x, out, 5, 6, BLOCK=BLOCK))
    (node,) = graph.node_parameters()
    values = dict(node.values)
    assert (node.kind, node.name) == ("kernel", "triton:_add_kernel")
    assert values["grid[0]"] == ("int", "2")
    assert (values["addend"], values["BLOCK"]) == (("int", "5"), ("int", "4"))
    assert dict(node.pointers) == {"x_ptr": x.data_ptr(), "out_ptr": out.data_ptr()}
