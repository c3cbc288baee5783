"""A capture refuses kernels that it would have to compile, load or tune."""

# ruff: noqa: ANN001, ANN202, N803  # Triton kernels: no host types, constexprs in capitals
# TRITON_INTERPRET is read when Triton is imported

import importlib.util
import os
import threading
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
import torch

from graphparity.fastpath.recorders import CaptureError, EmulatedRecorder
from graphparity.fastpath.recorders.cold_kernels import refused_compilation

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is not installed: nothing to launch", allow_module_level=True)

import triton
import triton.language as tl
from triton.runtime.jit import JITFunction

DEVICE = torch.device("cpu:0")


@triton.jit
def _add_kernel(out_ptr, addend, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.load(out_ptr + offsets) + addend)


OUT = torch.zeros(16, dtype=torch.int32)
INT64_OUT = torch.zeros(16, dtype=torch.int64)


def _launch(
    out: torch.Tensor = OUT, addend: Any = 7, block: int = 8
) -> Callable[[], object]:
    return lambda: _add_kernel[(1,)](out, addend, BLOCK=block)


def _cold_recorder() -> EmulatedRecorder:
    return EmulatedRecorder(DEVICE, [OUT, INT64_OUT], starts_cold=True)


def test_a_capture_refuses_what_no_warm_up_launched() -> None:
    """By the kernel's name and the line that launches it."""
    with pytest.raises(CaptureError, match="triton:_add_kernel at") as caught:
        _cold_recorder().capture(_launch())
    assert "would be compiled or loaded" in caught.value.reason
    assert caught.value.location.startswith(f"{__file__}:")


def test_a_warmed_up_kernel_is_recorded() -> None:
    """Whatever its arguments of the same kind hold."""
    recorder = _cold_recorder()
    recorder.warm_up(_launch(addend=7))
    graph, _ = recorder.capture(_launch(addend=9))
    assert graph.num_nodes == 1


@pytest.mark.parametrize(
    "other",
    [
        {"addend": 1},
        {"addend": 32},
        {"addend": 2**40 + 1},
        {"addend": 7.0},
        {"block": 16},
        {"out": INT64_OUT},
        {"out": OUT[1:]},
    ],
    ids=["one", "multiple of 16", "64 bits", "float", "constant", "type", "alignment"],
)
def test_other_kinds_of_arguments_are_compiled_anew(other: dict[str, Any]) -> None:
    """A warm-up of the kernel with others does not make it warm for these."""
    recorder = _cold_recorder()
    recorder.warm_up(_launch())
    with pytest.raises(CaptureError, match="first time"):
        recorder.capture(_launch(**other))
    recorder.warm_up(_launch(**other))
    assert recorder.capture(_launch(**other))[0].num_nodes == 1


def test_a_recorder_that_is_not_told_so_takes_every_kernel_for_warm() -> None:
    """Most tests are about something else."""
    recorder = EmulatedRecorder(DEVICE, [OUT])
    assert recorder.capture(_launch())[0].num_nodes == 1


class _CompiledError(Exception):
    """Triton was let through to its compiler."""


@pytest.fixture
def compile_kernel(monkeypatch: pytest.MonkeyPatch) -> Callable[[], object]:
    """Triton's own step to its compiler, for a kernel that is not interpreted, with a
    compiler of ours: on this machine Triton has no GPU to compile for.
    """

    def compiler(self: object, *args: object, **kwargs: object) -> None:
        raise _CompiledError

    monkeypatch.setattr(JITFunction, "_do_compile", compiler)
    kernel = JITFunction(_add_kernel.fn)
    return lambda: kernel._do_compile("key", {}, 0, {}, {}, {}, False)


def test_compilation_is_refused_by_name(compile_kernel: Callable[[], object]) -> None:
    """Until the block ends."""
    with refused_compilation(), pytest.raises(CaptureError) as caught:
        compile_kernel()
    assert caught.value.operation == "triton:_add_kernel"
    assert "would be compiled or loaded" in caught.value.reason
    with pytest.raises(_CompiledError):
        compile_kernel()


def test_another_thread_may_compile(compile_kernel: Callable[[], object]) -> None:
    """It captures nothing."""
    raised: list[BaseException] = []

    def compiling() -> None:
        with pytest.raises(_CompiledError) as caught:
            compile_kernel()
        raised.append(caught.value)

    with refused_compilation():
        thread = threading.Thread(target=compiling)
        thread.start()
        thread.join()
    assert [type(it) for it in raised] == [_CompiledError]


def test_tuning_is_refused_by_name() -> None:
    """An autotuner with a choice times its launches, the first time that it is called
    with a key.
    """
    times: list[float] = []

    def do_bench(launch: Callable[[], object], quantiles: object) -> list[float]:
        times.append(0.1)
        return [0.1, 0.1, 0.1]

    tuned = triton.autotune(
        configs=[triton.Config({"BLOCK": 8}), triton.Config({"BLOCK": 16})],
        key=["addend"],
        do_bench=do_bench,
    )(_add_kernel)
    with refused_compilation(), pytest.raises(CaptureError) as caught:
        tuned[(1,)](OUT, 3)
    assert caught.value.operation == "triton:_add_kernel"
    assert "would be tuned" in caught.value.reason
    assert times == []
    tuned[(1,)](OUT, 3)
    with refused_compilation():
        tuned[(1,)](OUT, 3)
    assert len(times) == 2
