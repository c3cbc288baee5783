"""Launches of interpreted Triton kernels, each one node.

The hook sits where every interpreted launch ends, autotuned or not:
`GridExecutor.__call__`. Grid, scalars and constexprs are fixed at capture, as a
recorded kernel's are. Triton is optional: without it there is nothing to hook.
"""

import copy
import functools
import importlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from graphparity.fastpath.recorders.capture_session import CaptureSession
from graphparity.fastpath.recorders.cold_kernels import (
    COMPILED,
    REMEDY,
    WarmKernels,
)
from graphparity.fastpath.recorders.nodes import Operand, frozen, tensors_in
from graphparity.fastpath.recorders.refusals import Refusal, kernel_argument_refusal

Launch = Callable[..., None]
# Triton is untyped and optional: its `GridExecutor`.
Executor = Any


@functools.cache
def _grid_executor() -> type[Executor] | None:
    """Return Triton's `GridExecutor`, or None where Triton is not installed."""
    try:
        interpreter: Any = importlib.import_module("triton.runtime.interpreter")
    except ImportError:
        return None
    executor: type[Executor] = interpreter.GridExecutor
    return executor


@contextmanager
def noted_launches(warm: WarmKernels) -> Iterator[None]:
    """Count the kernels that the current thread launches as warm."""

    def note(launch: Launch, executor: Executor, args: Operand, kwargs: Any) -> None:
        warm.add(executor, args, kwargs)
        launch(executor, *args, **kwargs)

    with _hooked(note):
        yield


@contextmanager
def recorded_launches(
    session: CaptureSession, warm: WarmKernels | None
) -> Iterator[None]:
    """Record the launches that the current thread makes, until the block ends; a kernel
    that is not `warm` is refused.
    """

    def record(launch: Launch, executor: Executor, args: Operand, kwargs: Any) -> None:
        if session.is_executing:
            launch(executor, *args, **kwargs)
            return
        if warm is not None and not warm.has(executor, args, kwargs):
            session.refuse(_name(executor), Refusal(COMPILED, REMEDY))
        _record_launch(session, launch, executor, args, kwargs)

    with _hooked(record):
        yield


@contextmanager
def _hooked(
    on_launch: Callable[[Launch, Executor, Operand, Any], None],
) -> Iterator[None]:
    """Call `on_launch` in place of a launch of the current thread."""
    grid_executor = _grid_executor()
    if grid_executor is None:
        yield
        return
    launch, thread = grid_executor.__call__, threading.get_ident()

    def hook(executor: Executor, *args: Operand, **kwargs: Operand) -> None:
        if threading.get_ident() != thread:
            launch(executor, *args, **kwargs)
        else:
            on_launch(launch, executor, args, kwargs)

    grid_executor.__call__ = hook
    try:
        yield
    finally:
        grid_executor.__call__ = launch


def _record_launch(
    session: CaptureSession,
    launch: Launch,
    executor: Executor,
    args: Operand,
    kwargs: dict[str, Operand],
) -> None:
    name = _name(executor)
    arguments = list(_kernel_tensors([args, kwargs]))
    for argument in arguments:
        refusal = kernel_argument_refusal(session.placement(argument))
        if refusal is not None:
            session.refuse(name, refusal)
    for (
        pre_run_hook
    ) in executor.pre_run_hooks:  # torch code of the host: nodes of its own
        pre_run_hook(*args, **kwargs)
    session.keep_content(arguments)
    with session.execution():
        args, kwargs = frozen(args, _always), frozen(kwargs, _always)
        fixed = _launch_with_fixed_grid(launch, executor, args, kwargs)
        aliases = list(_kernel_tensors([args, kwargs]))
    run: functools.partial[Any] = functools.partial(launch, fixed, *args, **kwargs)
    session.record(
        "kernel",
        name,
        run,
        reads=aliases,
        writes=aliases,
        arguments=[
            *zip(executor.arg_names, args, strict=False),
            *kwargs.items(),
            ("grid", tuple(fixed.grid)),
        ],
    )


def _launch_with_fixed_grid(
    launch: Launch, executor: Executor, args: Operand, kwargs: dict[str, Operand]
) -> Executor:
    """Launch once, and return an executor whose grid is the one of this launch."""
    fixed = copy.copy(executor)
    fixed.pre_run_hooks = []
    if not callable(executor.grid):
        fixed.grid = tuple(executor.grid)
        launch(fixed, *args, **kwargs)
        return fixed
    grids: list[Any] = []

    def grid_of_launch(arguments: Operand) -> Operand:
        grids.append(executor.grid(arguments))
        return grids[-1]

    fixed.grid = grid_of_launch
    launch(fixed, *args, **kwargs)
    fixed.grid = grids[-1]
    return fixed


def _name(executor: Executor) -> str:
    return f"triton:{executor.fn.__name__}"


def _always(tensor: torch.Tensor) -> bool:
    return True


def _kernel_tensors(value: Operand) -> Iterator[torch.Tensor]:
    """Yield the tensors of kernel arguments, those inside descriptors included."""
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _kernel_tensors(item)
    elif isinstance(value, dict):
        yield from _kernel_tensors(list(value.values()))
    elif not isinstance(value, torch.Tensor) and hasattr(value, "base"):
        yield from _kernel_tensors(value.base)
    else:
        yield from tensors_in(value)
