"""No kernel is compiled, loaded or tuned inside a capture.

Triton compiles a kernel at its first launch with arguments of a kind: a module is then
loaded, and an autotuner times launches and waits for them. In a capture the load may
invalidate the graph, and what is timed is recorded with it. So a capture refuses such a
launch by the kernel's name; the warm-up before it makes the launch first, with the same
arguments. Kernels of other compilers (CuTe DSL, TileLang) are not seen.

The interpreter compiles nothing. There `WarmKernels` stands for Triton's cache, cold
when it is made: a kernel is warm once it was launched with arguments of the same kind.
"""

import functools
import importlib
import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from graphparity.fastpath.recorders.call_sites import call_site
from graphparity.fastpath.recorders.protocol import CaptureError

REMEDY = "launch it in the build's warm-up too, with arguments of the same kind"
COMPILED = "it is launched for the first time, and would be compiled or loaded"
TUNED = "it is launched for the first time, and would be tuned"


@contextmanager
def refused_compilation() -> Iterator[None]:
    """Within, Triton raises `CaptureError` instead of compiling, loading or tuning for
    the current thread.
    """
    try:
        jit: Any = importlib.import_module("triton.runtime.jit").JITFunction
        autotuner: Any = importlib.import_module("triton.runtime.autotuner").Autotuner
    except ImportError:
        yield
        return
    compiling, timing = jit._do_compile, autotuner._bench
    thread = threading.get_ident()

    @functools.wraps(compiling)
    def refuse_compiling(self: Any, *args: object, **kwargs: object) -> Any:
        if threading.get_ident() == thread:
            raise _cold(self.__name__, COMPILED)
        return compiling(self, *args, **kwargs)

    @functools.wraps(timing)
    def refuse_timing(self: Any, *args: object, **kwargs: object) -> Any:
        if threading.get_ident() == thread:
            raise _cold(self.base_fn.__name__, TUNED)
        return timing(self, *args, **kwargs)

    jit._do_compile, autotuner._bench = refuse_compiling, refuse_timing
    try:
        yield
    finally:
        jit._do_compile, autotuner._bench = compiling, timing


def _cold(kernel: str, reason: str) -> CaptureError:
    return CaptureError(
        operation=f"triton:{kernel}",
        reason=reason,
        location=call_site(),
        remedy=REMEDY,
    )


class WarmKernels:
    """The interpreted kernels that were launched, and with which kinds of arguments."""

    def __init__(self) -> None:
        self._launched: set[Hashable] = set()

    def add(self, executor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A launch of Triton's `GridExecutor` compiled what it needs."""
        self._launched.add(_specialization(executor, args, kwargs))

    def has(self, executor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether such a launch would compile nothing."""
        return _specialization(executor, args, kwargs) in self._launched


def _specialization(
    executor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Hashable:
    """What Triton compiles a kernel for: constants, and the kinds of the others."""
    named = {**dict(zip(executor.arg_names, args, strict=False)), **kwargs}
    return executor.fn, tuple(
        (name, repr(value) if name in executor.constexprs else _kind(value))
        for name, value in sorted(named.items())
    )


def _kind(value: Any) -> Hashable:
    """As Triton specializes: 1 is a constant, and multiples of 16 are a kind."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.data_ptr() % 16 == 0
    if isinstance(value, bool) or not isinstance(value, int):
        return type(value).__qualname__
    if value == 1:
        return 1
    return int, value % 16 == 0, -(2**31) <= value < 2**31
