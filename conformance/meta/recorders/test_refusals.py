"""A capture refuses what a CUDA graph cannot record, and names who asked for it.

Every refused program is also run without its offending call: that one captures.
"""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from graphparity.fastpath.recorders import CaptureError, EmulatedGraph, EmulatedRecorder

DEVICE = torch.device("cpu:0")


class Memory:
    """The memory a program works on, fresh for each test."""

    def __init__(self) -> None:
        self.graph: EmulatedGraph
        self.x = torch.arange(8, dtype=torch.int32)
        self.out = torch.zeros(8, dtype=torch.int32)
        self.mask = torch.arange(8) > 3
        self.index = torch.tensor([0, 2])
        self.pinned = torch.ones(8, dtype=torch.int32)
        self.rotating = torch.ones(8, dtype=torch.int32)
        self.host = torch.ones(8, dtype=torch.int32)
        self.scalar = torch.tensor(3, dtype=torch.int32)
        self.recorder = EmulatedRecorder(
            DEVICE,
            [self.x, self.out, self.mask, self.index],
            [self.pinned],
            [self.rotating],
        )

    def capture(self, build: "Program") -> tuple[EmulatedGraph, Any]:
        """Capture a program of this memory."""
        return self.recorder.capture(lambda: build(self))


Program = Callable[[Memory], Any]


def nested(m: Memory) -> None:
    """Capture inside a capture."""
    m.recorder.capture(lambda: None)


def replay(m: Memory) -> None:
    """Launch a graph inside a capture."""
    m.graph.replay()


def copy_temporary(m: Memory) -> None:
    """Copy what was pinned inside the capture."""
    m.out.copy_(m.host.pin_memory(), non_blocking=True)


def copy_pinned_factory(m: Memory) -> None:
    """Copy what was allocated pinned inside the capture."""
    pinned = torch.zeros(8, dtype=torch.int32, pin_memory=True)
    m.out.copy_(pinned, non_blocking=True)


def set_item(target: torch.Tensor, key: object, value: object) -> None:
    """Store as an expression, for the tables below."""
    target[key] = value


READS = {
    "x.sum().item()": ("Tensor.item", lambda m: m.x.sum().item()),
    "x.tolist()": ("Tensor.tolist", lambda m: m.x.tolist()),
    "x.numpy()": ("Tensor.numpy", lambda m: m.x.numpy()),
    "x.cpu()": ("Tensor.cpu", lambda m: m.x.cpu()),
    "x.to('cpu')": ("Tensor.to", lambda m: m.x.to("cpu")),
    "x.to(device='cpu')": ("Tensor.to", lambda m: m.x.to(device="cpu")),
    "x.to(host)": ("Tensor.to", lambda m: m.x.to(m.host)),
    "bool(x.any())": ("Tensor.__bool__", lambda m: bool(m.x.any())),
    "int(x[0])": ("Tensor.__int__", lambda m: int(m.x[0])),
    "float(x[0])": ("Tensor.__float__", lambda m: float(m.x[0])),
    "range(x[0])": ("Tensor.__index__", lambda m: range(m.x[0])),
    "if x[0] > 3": ("Tensor.__bool__", lambda m: 1 if m.x[0] > 3 else 0),
    "max(x)": ("Tensor.__bool__", lambda m: max(m.x)),
    "[int(v) for v in x]": ("Tensor.__int__", lambda m: [int(v) for v in m.x]),
    "3 in x": ("Tensor.__contains__", lambda m: 3 in m.x),
    "x[:x[0]]": ("aten._local_scalar_dense", lambda m: m.x[: m.x[0]]),
    "x[x[0]]": ("aten._local_scalar_dense", lambda m: m.x[m.x[0]]),
    "np.asarray(x)": ("Tensor.__array__", lambda m: np.asarray(m.x)),
    "np.add(x, 1)": ("Tensor.__array__", lambda m: np.add(m.x, 1)),
    "np.from_dlpack(x)": ("Tensor.__dlpack__", lambda m: np.from_dlpack(m.x)),
    "torch.from_dlpack(x)": ("Tensor.__dlpack__", lambda m: torch.from_dlpack(m.x)),
    "repr(x)": ("Tensor.__repr__", lambda m: repr(m.x)),
    "str(x)": ("Tensor.__repr__", lambda m: str(m.x)),
    "f'{x[0]}'": ("Tensor.__format__", lambda m: f"{m.x[0]}"),
    "torch.equal(x, out)": ("torch.equal", lambda m: torch.equal(m.x, m.out)),
    "x.equal(out)": ("Tensor.equal", lambda m: m.x.equal(m.out)),
    "torch.allclose": ("torch.allclose", lambda m: torch.allclose(m.x, m.out)),
    "torch.tensor([x[0]])": ("torch.tensor", lambda m: torch.tensor([m.x[0]])),
    "torch.as_tensor(x, 'cpu')": (
        "torch.as_tensor",
        lambda m: torch.as_tensor(m.x, device="cpu"),
    ),
    "host.copy_(x)": ("aten.copy_", lambda m: m.host.copy_(m.x)),
    "host[0] = x[0]": ("aten.copy_", lambda m: set_item(m.host, 0, m.x[0])),
    "pinned.copy_(x)": ("aten.copy_", lambda m: m.pinned.copy_(m.x)),
}
SHAPES = {
    "x.nonzero()": ("aten.nonzero", lambda m: m.x.nonzero()),
    "torch.where(mask)": ("aten.nonzero", lambda m: torch.where(m.mask)),
    "x.unique()": ("aten._unique2", lambda m: m.x.unique()),
    "torch.unique_consecutive(x)": (
        "aten.unique_consecutive",
        lambda m: torch.unique_consecutive(m.x),
    ),
    "masked_select": ("aten.masked_select", lambda m: m.x.masked_select(m.mask)),
    "x[mask]": ("aten.index", lambda m: m.x[m.mask]),
    "x[mask] = out[:4]": (
        "aten.index_put_",
        lambda m: set_item(m.x, m.mask, m.out[:4]),
    ),
    "x[mask] = out[0]": ("aten.index_put_", lambda m: set_item(m.x, m.mask, m.out[0])),
    "repeat_interleave(x, repeats)": (
        "aten.repeat_interleave",
        lambda m: torch.repeat_interleave(m.x, m.x),
    ),
    "x.bincount()": ("aten.bincount", lambda m: m.x.bincount()),
}
COPIES = {
    "out.copy_(host)": ("aten.copy_", lambda m: m.out.copy_(m.host)),
    "out.copy_(host, non_blocking)": (
        "aten.copy_",
        lambda m: m.out.copy_(m.host, non_blocking=True),
    ),
    "out.copy_(from_numpy)": (
        "aten.copy_",
        lambda m: m.out.copy_(torch.from_numpy(np.ones(8))),
    ),
    "out.copy_(scalar)": ("aten.copy_", lambda m: m.out.copy_(m.scalar)),
    "out[0] = 3": ("aten.copy_", lambda m: set_item(m.out, 0, 3)),
    "out[index] = 3": ("aten.index_put_", lambda m: set_item(m.out, m.index, 3)),
    "out[[0, 1]] = 3": ("aten.index_put_", lambda m: set_item(m.out, [0, 1], 3)),
    "x[[0, 1]]": ("aten.index", lambda m: m.x[[0, 1]]),
    "x[host index]": ("aten.index", lambda m: m.x[m.host.long()]),
    "out[:2] = host[:2]": (
        "aten.copy_",
        lambda m: set_item(m.out, slice(2), m.host[:2]),
    ),
    "host.to(device)": ("Tensor.to", lambda m: m.host.to(DEVICE)),
    "host.to(x.device)": ("Tensor.to", lambda m: m.host.to(m.x.device)),
    "host.to(x)": ("Tensor.to", lambda m: m.host.to(m.x)),
    "scalar.to(device)": ("Tensor.to", lambda m: m.scalar.to(DEVICE)),
    "torch.tensor([1], device)": (
        "torch.tensor",
        lambda m: torch.tensor([1], device=DEVICE),
    ),
    "torch.tensor(1, device)": (
        "torch.tensor",
        lambda m: torch.tensor(1, device="cpu:0"),
    ),
    "x.new_tensor([1])": ("Tensor.new_tensor", lambda m: m.x.new_tensor([1])),
    "torch.as_tensor(array, device)": (
        "torch.as_tensor",
        lambda m: torch.as_tensor(np.ones(2), device=m.x.device),
    ),
    "torch.asarray(host, device)": (
        "torch.asarray",
        lambda m: torch.asarray(m.host, device=DEVICE),
    ),
    "torch.where(mask, x, scalar)": (
        "aten.where",
        lambda m: torch.where(m.mask, m.x, m.scalar),
    ),
    "out.copy_(pinned)": ("aten.copy_", lambda m: m.out.copy_(m.pinned)),
    "pinned.to(device)": ("Tensor.to", lambda m: m.pinned.to(DEVICE)),
    "out.copy_(host.pin_memory())": ("aten.copy_", copy_temporary),
    "out.copy_(zeros(pin_memory=True))": ("aten.copy_", copy_pinned_factory),
}
OPERANDS = {
    "x + host": ("aten.add", lambda m: m.x + m.host),
    "x + fresh": ("aten.add", lambda m: m.x + torch.zeros(8)),
    "x + zeros(device='cpu')": (
        "aten.add",
        lambda m: m.x + m.x.new_zeros(8, device="cpu"),
    ),
    "x + pinned": ("aten.add", lambda m: m.x + m.pinned),
    "torch.add(x, 1, out=host)": ("aten.add", lambda m: torch.add(m.x, 1, out=m.host)),
    "torch.cat([x, host])": ("aten.cat", lambda m: torch.cat([m.x, m.host])),
    "x + rotating": ("aten.add", lambda m: m.x + m.rotating),
    "out.copy_(rotating)": (
        "aten.copy_",
        lambda m: m.out.copy_(m.rotating, non_blocking=True),
    ),
    "x[rotating]": ("aten.index", lambda m: m.x[m.rotating[:2].view(torch.int32)]),
    "x + rotating[0]": ("aten.add", lambda m: m.x + m.rotating[0]),
}
OTHERS = {
    "x.resize_(4)": ("aten.resize_", lambda m: m.x.resize_(4)),
    "x.set_(out)": ("aten.set_", lambda m: m.x.set_(m.out)),
    "x.data = out": ("Tensor.data", lambda m: setattr(m.x, "data", m.out)),
    "add(out=too small)": (
        "aten.add",
        lambda m: torch.add(m.x[:, None], m.x, out=m.out),
    ),
    "torch.rand(device)": ("aten.rand", lambda m: torch.rand(2, device=DEVICE)),
    "x.random_()": ("aten.random_", lambda m: m.x.random_()),
    "capture in a capture": ("EmulatedRecorder.capture", nested),
    "synchronize in a capture": (
        "EmulatedRecorder.synchronize",
        lambda m: m.recorder.synchronize(),
    ),
    "replay in a capture": ("EmulatedGraph.replay", replay),
}
REFUSED = READS | SHAPES | COPIES | OPERANDS | OTHERS
REASONS = {
    "x.tolist()": "on the host",
    "x.nonzero()": "shape of its result",
    "out.copy_(host)": "pageable",
    "out.copy_(pinned)": "blocking",
    "out.copy_(host.pin_memory())": "during the capture",
    "out.copy_(zeros(pin_memory=True))": "during the capture",
    "x + fresh": "not declared",
    "x + pinned": "other than a copy",
    "x + rotating": "rotates",
    "out.copy_(rotating)": "rotates",
    "x[rotating]": "rotates",
    "x + rotating[0]": "rotates",
    "x.set_(out)": "storage",
    "add(out=too small)": "storage",
    "torch.rand(device)": "generator",
    "capture in a capture": "another capture",
}


def lines_of(function: Callable[..., object]) -> range:
    """Return the lines of this file that hold a function."""
    source, first = inspect.getsourcelines(function)
    return range(first, first + len(source))


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("call", REFUSED)
def test_a_capture_refuses(call: str) -> None:
    """The error names the operation and the caller's line; memory is as before."""
    memory = Memory()
    operation, program = REFUSED[call]
    memory.graph = memory.capture(lambda m: m.out.copy_(m.x))[0]

    def build(m: Memory) -> object:
        m.out.add_(1)
        program(m)

    with pytest.raises(CaptureError) as caught:
        memory.capture(build)
    error = caught.value
    path, line = error.location.rsplit(":", 1)
    caller = set_item if "set_item" in program.__code__.co_names else program
    assert error.operation.startswith(operation)
    assert (path, int(line) in lines_of(caller)) == (__file__, True)
    assert error.operation in str(error)
    assert error.location in str(error)
    assert REASONS.get(call, "") in error.reason
    assert memory.out.tolist() == [0] * 8
    # Without the offending call the same program is recorded.
    graph, _ = memory.capture(lambda m: m.out.add_(1))
    graph.replay()
    assert memory.out.tolist() == [1] * 8


ALLOWED = {
    "out.add_(1)": lambda m: m.out.add_(1),
    "out[:2] = 3": lambda m: set_item(m.out, slice(2), 3),
    "out[mask] = 3": lambda m: set_item(m.out, m.mask, 3),
    "out[mask] = scalar": lambda m: set_item(m.out, m.mask, m.scalar),
    "out[index] = x[index]": lambda m: set_item(m.out, m.index, m.x[m.index]),
    "out.fill_(scalar)": lambda m: m.out.fill_(m.scalar),
    "out.masked_fill_(mask, scalar)": lambda m: m.out.masked_fill_(m.mask, m.scalar),
    "x + scalar": lambda m: m.x + m.scalar,
    "x + host[0]": lambda m: m.x + m.host[0],
    "x + host.max().item()": lambda m: m.x + m.host.max().item(),
    "torch.where(mask, x, -1)": lambda m: torch.where(m.mask, m.x, -1),
    "x[host scalar]": lambda m: m.x[m.scalar] + 1,
    "out.copy_(pinned, non_blocking)": lambda m: m.out.copy_(
        m.pinned, non_blocking=True
    ),
    "pinned.copy_(x, non_blocking)": lambda m: m.pinned.copy_(m.x, non_blocking=True),
    "repeat_interleave(output_size)": lambda m: torch.repeat_interleave(
        m.x, m.x, output_size=28
    ),
    "torch.zeros(device=x.device)": lambda m: torch.zeros(4, device=m.x.device),
    "torch.zeros_like(host, device)": lambda m: torch.zeros_like(m.host, device=DEVICE),
    "torch.scalar_tensor(3, device)": lambda m: torch.scalar_tensor(3, device=DEVICE),
    "x + x.new_zeros(8)": lambda m: m.x + m.x.new_zeros(8),
    "x + empty_like(x)": lambda m: m.x + torch.empty_like(m.x),
    "x.to(device) + 1": lambda m: m.x.to(DEVICE) + 1,
    "x.to(int64)": lambda m: m.x.to(torch.int64),
    "x.to(device, int64)": lambda m: m.x.to(DEVICE, torch.int64, non_blocking=True),
    "x.to(out)": lambda m: m.x.to(m.out) + 1,
    "torch.as_tensor(x, device)": lambda m: torch.as_tensor(m.x, device=DEVICE) + 1,
    "[v + 1 for v in x]": lambda m: [v + 1 for v in m.x],
    "x.view(2, 4).t() + 1": lambda m: m.x.view(2, 4).t() + 1,
    "x[None].squeeze_() + 1": lambda m: m.x[None].squeeze_() + 1,
    "sort": lambda m: m.x.sort(),
    "add(out=empty)": lambda m: torch.add(
        m.x, 1, out=torch.empty(0, dtype=torch.int32, device=DEVICE)
    ),
    "torch._foreach_add_": lambda m: torch._foreach_add_([m.out[:2], m.out[2:]], 1),
}


@pytest.mark.parametrize("call", ALLOWED)
def test_a_capture_records(call: str) -> None:
    """What a CUDA graph records is recorded, and replays."""
    memory = Memory()
    graph, _ = memory.capture(ALLOWED[call])
    assert graph.num_nodes > 0
    graph.replay()


HOST_WORK = {
    "host.max().item()": lambda m: m.host.max().item(),
    "host.tolist()": lambda m: m.host.tolist(),
    "host.numpy().sum()": lambda m: m.host.numpy().sum(),
    "repr(host)": lambda m: repr(m.host),
    "host.nonzero()": lambda m: m.host.nonzero(),
    "host[host > 0]": lambda m: m.host[m.host > 0],
    "pinned.fill_(3)": lambda m: m.pinned.fill_(3),
    "rotating[:2] = 3": lambda m: set_item(m.rotating, slice(2), 3),
    "torch.rand(2)": lambda m: torch.rand(2),
    "torch.tensor([1])": lambda m: torch.tensor([1]).item(),
    "torch.zeros_like(x, device='cpu')": lambda m: torch.zeros_like(
        m.x, device="cpu"
    ).tolist(),
    "torch.zeros(2, device='cpu')": lambda m: torch.zeros(2, device="cpu").tolist(),
    "host.to('cpu')": lambda m: m.host.to("cpu").tolist(),
    "host.pin_memory()": lambda m: m.host.pin_memory().is_pinned(),
    "x.shape, x.data_ptr()": lambda m: (m.x.shape, m.x.stride(), m.x.data_ptr()),
    "a view of x": lambda m: m.x[1:3].view(1, 2),
}


@pytest.mark.parametrize("call", HOST_WORK)
def test_host_work_is_neither_refused_nor_recorded(call: str) -> None:
    """A capture lets the host work on its own memory."""
    graph, _ = Memory().capture(HOST_WORK[call])
    assert graph.num_nodes == 0


def test_device_memory_reports_the_declared_device_during_a_capture() -> None:
    """`device=x.device` allocates on the device; a host tensor's does not."""
    memory = Memory()

    def build(m: Memory) -> object:
        made = torch.zeros(2, device=m.x.device)
        return m.x.device, made.device, m.x[1:].device, m.host.device, m.pinned.device

    _, actual = memory.capture(build)
    host = torch.device("cpu")
    assert actual == (DEVICE, DEVICE, DEVICE, host, host)
    assert memory.x.device == host


def test_a_default_device_counts_for_factories_and_copies() -> None:
    """`with torch.device(...)` around a capture is what factories allocate on."""
    memory = Memory()
    with DEVICE:
        graph, made = memory.capture(lambda m: torch.zeros(2))
        with pytest.raises(CaptureError, match=r"torch\.tensor"):
            memory.capture(lambda m: torch.tensor([1]))
    assert graph.num_nodes == 1
    assert made.tolist() != [0.0, 0.0]


def test_a_refusal_that_the_build_swallows_still_fails_the_capture() -> None:
    """A capture that was invalidated cannot be ended, as in CUDA."""

    def build(m: Memory) -> object:
        try:
            m.x.tolist()
        except CaptureError:
            return

    with pytest.raises(CaptureError, match=r"Tensor\.tolist"):
        Memory().capture(build)


def test_a_nested_refusal_that_the_build_swallows_still_fails_the_capture() -> None:
    """A refused launch or nested capture invalidates the outer capture, too."""

    def build(m: Memory) -> object:
        try:
            nested(m)
        except CaptureError:
            return

    with pytest.raises(CaptureError, match=r"EmulatedRecorder\.capture"):
        Memory().capture(build)


def test_a_failing_build_leaves_memory_modes_and_recorder_as_before() -> None:
    """The error passes unchanged; the next capture works."""
    memory = Memory()

    def build(m: Memory) -> object:
        m.out.add_(1)
        raise KeyError("builder")

    with pytest.raises(KeyError, match="builder"):
        memory.capture(build)
    assert memory.out.tolist() == [0] * 8
    assert memory.x.tolist() == list(range(8))
    graph, _ = memory.capture(lambda m: m.out.add_(m.x))
    graph.replay()
    assert memory.out.tolist() == memory.x.tolist()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda x: EmulatedRecorder(torch.device("cpu"), [x]),
            "'cpu' is not a CPU device with",
        ),
        (
            lambda x: EmulatedRecorder(torch.device("cuda:0"), [x]),
            "'cuda:0' is not a CPU",
        ),
        (
            lambda x: EmulatedRecorder(DEVICE, [x], [x[1:]]),
            "declared as both device memory",
        ),
        (lambda x: EmulatedRecorder(DEVICE, [x], poison_byte=256), "poison_byte 256"),
    ],
    ids=["cpu", "cuda:0", "twice declared", "poison_byte=256"],
)
def test_a_recorder_refuses_a_declaration(
    make: Callable[..., Any], message: str
) -> None:
    """One sentence with the value that is wrong."""
    with pytest.raises(ValueError, match=message):
        make(torch.zeros(4))
