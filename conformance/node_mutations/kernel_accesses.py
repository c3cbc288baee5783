"""What interpreted kernels load and store, address by address.

A kernel that is given a wrong scalar or pointer may reach past its buffers. On a GPU
that ends the process or reads a stranger's memory; here it would be the test process's
own. So while wrong recordings run, every access is checked first, and one outside of
the memory that a launch may touch raises. The same view tells which addresses two
launches share. Without Triton there is no kernel to watch.
"""

import copy
import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import numpy.typing as npt

from graphparity.fastpath.recorders import Node

Spans = Sequence[tuple[int, int]]
"""Address ranges, first and past the last."""
Addresses = npt.NDArray[np.uint64]


class Access(NamedTuple):
    """One load or store of a launch, of all its lanes that are not masked."""

    addresses: Addresses
    """[num_lanes]"""
    num_bytes: int
    """Of one lane."""
    is_store: bool


class OutsideMemoryError(Exception):
    """A kernel was about to touch memory that none of its buffers holds."""


Watch = Callable[[Access], None]


@contextmanager
def kept_inside(spans: Spans) -> Iterator[None]:
    """Stop every kernel that is about to leave ``spans``.

    Raises:
        OutsideMemoryError: one did, as the cause of what ``stops_of_kernels`` names.
    """
    starts, ends = np.array(sorted(spans), dtype=np.uint64).reshape(-1, 2).T

    def check(access: Access) -> None:
        found = np.searchsorted(starts, access.addresses, side="right") - 1
        past = access.addresses + np.uint64(access.num_bytes) > ends[found]
        if (found < 0).any() or past.any():
            verb = "stored" if access.is_store else "loaded"
            raise OutsideMemoryError(f"{verb} past its buffers")

    with _watched(check):
        yield


def accesses_of(node: Node) -> list[Access]:
    """What the launch of a kernel touches from the memory as it is; it runs."""
    executor, *args = node.run.args
    # A launch with a hook is never one that was kept from another time.
    executor = copy.copy(executor)
    executor.pre_run_hooks = [lambda *args, **kwargs: None]
    seen: list[Access] = []
    with _watched(seen.append):
        node.run.func(executor, *args, **node.run.keywords)
    return seen


@cache
def stops_of_kernels() -> tuple[type[Exception], ...]:
    """The errors that end an interpreted launch; none without Triton."""
    try:
        errors: Any = importlib.import_module("triton.runtime.errors")
    except ImportError:
        return ()
    return (errors.InterpreterError,)


@contextmanager
def _watched(watch: Watch) -> Iterator[None]:
    """Call ``watch`` before every access of an interpreted kernel."""
    try:
        interpreter: Any = importlib.import_module("triton.runtime.interpreter")
    except ImportError:
        yield
        return
    builder = interpreter.InterpreterBuilder

    def itemsize(pointers: Any) -> int:
        dtype = interpreter._get_np_dtype(pointers.get_element_ty())
        return int(np.dtype(dtype).itemsize)

    load, store = builder.create_masked_load, builder.create_masked_store
    swap, modify = builder.create_atomic_cas, builder.create_atomic_rmw

    def see(pointers: Any, mask: Any, *, is_store: bool) -> None:
        where = np.atleast_1d(pointers.data)
        lanes = where[np.broadcast_to(mask, where.shape)]
        if lanes.size:
            watch(Access(lanes.astype(np.uint64), itemsize(pointers), is_store))

    def loading(self: Any, ptrs: Any, mask: Any, *rest: Any) -> Any:
        see(ptrs, mask.data, is_store=False)
        return load(self, ptrs, mask, *rest)

    def storing(self: Any, ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
        see(ptrs, mask.data, is_store=True)
        return store(self, ptrs, value, mask, *rest)

    def swapping(self: Any, ptr: Any, *rest: Any) -> Any:
        see(ptr, True, is_store=True)
        return swap(self, ptr, *rest)

    def modifying(self: Any, op: Any, ptr: Any, val: Any, mask: Any, *rest: Any) -> Any:
        see(ptr, mask.data, is_store=True)
        return modify(self, op, ptr, val, mask, *rest)

    with mock.patch.multiple(
        builder,
        create_masked_load=loading,
        create_masked_store=storing,
        create_atomic_cas=swapping,
        create_atomic_rmw=modifying,
    ):
        yield
