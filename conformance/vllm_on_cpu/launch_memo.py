"""Interpreted Triton kernels, run once for the same arguments over the same memory.

A comparison launches each kernel at least twice, from one memory image: replayed and
eagerly. Removing a recorded node launches all others again. An interpreted kernel takes
milliseconds, and is a function of its grid, its arguments and the memory behind them:
`launch_once()` keeps what a launch wrote, by all of that, and writes it again where all
of it is equal, to the byte. A launch that differs in anything runs.

Invariant: what is kept follows from its key. A kernel that makes a pointer of an
integer reads memory that no argument leads to, so nothing of it is kept. Test processes
only: it changes `triton` for the life of the process.
"""

import hashlib
import inspect
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

Launch = Callable[..., None]
Bytes = npt.NDArray[np.uint8]

MAX_KEPT_BYTES = 256 * 2**20
MAX_READ_BYTES = 16 * 2**20
"""A launch over more memory than this runs: reading all of it would cost more."""


class Written(NamedTuple):
    """What a launch changed in one storage."""

    storage: int
    """The storage's place among those of the arguments."""
    offsets: npt.NDArray[np.int64]
    values: Bytes


class LaunchMemo:
    """What launches wrote, by their key; the least recently used are dropped.

    Args:
        launch: `GridExecutor.__call__`, or what stands for it.
        max_kept_bytes: how much is kept, in bytes.
    """

    def __init__(self, launch: Launch, max_kept_bytes: int = MAX_KEPT_BYTES) -> None:
        self._launch, self._max_kept_bytes = launch, max_kept_bytes
        self._kept: OrderedDict[Hashable, list[Written]] = OrderedDict()
        self._kept_bytes = 0
        self.num_run = self.num_kept = 0
        self.has_made_pointer = False
        """Whether the launch in progress made a pointer of an integer."""

    def __call__(self, executor: Any, *args: Any, **kwargs: Any) -> None:
        """As `GridExecutor.__call__`."""
        arguments = Arguments.of(executor, args, kwargs)
        if arguments is None:
            self._launch(executor, *args, **kwargs)
            return
        written = self._kept.get(arguments.key)
        if written is None:
            self._run(arguments, executor, args, kwargs)
            return
        self._kept.move_to_end(arguments.key)
        self.num_kept += 1
        for change in written:
            arguments.storages[change.storage][change.offsets] = change.values

    def _run(
        self, arguments: "Arguments", executor: Any, args: Any, kwargs: Any
    ) -> None:
        self.num_run += 1
        self.has_made_pointer = False
        before = [storage.copy() for storage in arguments.storages]
        self._launch(executor, *args, **kwargs)
        if not self.has_made_pointer:
            self._keep(arguments.key, _changes(before, arguments.storages))

    def _keep(self, key: Hashable, written: list[Written]) -> None:
        self._kept[key] = written
        self._kept_bytes += _num_bytes(written)
        while self._kept_bytes > self._max_kept_bytes:
            self._kept_bytes -= _num_bytes(self._kept.popitem(last=False)[1])


class Arguments(NamedTuple):
    """The arguments of a launch, and the memory behind them."""

    key: Hashable
    storages: list[Bytes]

    @classmethod
    def of(cls, executor: Any, args: Any, kwargs: Any) -> "Arguments | None":
        """None where the key would not tell all that the launch reads."""
        if executor.pre_run_hooks:
            return None
        names = _parameter_names(executor.fn)
        kwargs = {name: it for name, it in kwargs.items() if name in names}
        bound = inspect.getcallargs(executor.fn, *args, **kwargs)
        grid = executor.grid(bound) if callable(executor.grid) else executor.grid
        storages: dict[int, Bytes] = {}
        try:
            parts = tuple(_part(value, storages) for value in bound.values())
        except _UnknownArgumentError:
            return None
        if sum(storage.nbytes for storage in storages.values()) > MAX_READ_BYTES:
            return None
        digests = tuple(
            hashlib.blake2b(storage.data, digest_size=16).digest()
            for storage in storages.values()
        )
        key = (executor.fn, tuple(grid), parts, digests)
        return cls(key, list(storages.values()))


class _UnknownArgumentError(Exception):
    """An argument of a kind that no key is made of."""


def _part(value: object, storages: dict[int, Bytes]) -> Hashable:
    """The part of the key that is one argument; notes the memory behind it."""
    if isinstance(value, torch.Tensor):
        storage = value.untyped_storage()
        content = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
        storages.setdefault(storage.data_ptr(), content)
        place = list(storages).index(storage.data_ptr())
        return place, value.storage_offset(), value.shape, value.stride(), value.dtype
    if isinstance(value, tuple):
        return tuple(_part(item, storages) for item in value)
    if value is None or isinstance(value, bool | int | float | str | torch.dtype):
        return type(value), value
    if type(value).__module__ == "triton.language.core" and hasattr(value, "name"):
        return type(value), str(value)
    raise _UnknownArgumentError


@cache
def _parameter_names(function: Callable[..., object]) -> frozenset[str]:
    return frozenset(inspect.getfullargspec(function).args)


def _changes(before: list[Bytes], after: list[Bytes]) -> list[Written]:
    changes = []
    for index, (old, new) in enumerate(zip(before, after, strict=True)):
        offsets = np.flatnonzero(old != new)
        if offsets.size:
            changes.append(Written(index, offsets, new[offsets]))
    return changes


def _num_bytes(written: list[Written]) -> int:
    return sum(change.offsets.nbytes + change.values.nbytes for change in written)


@cache
def launch_once() -> LaunchMemo:
    """Put a memo before every launch of this process's interpreter; idempotent."""
    from triton.runtime import interpreter

    builder: Any = interpreter.InterpreterBuilder
    make_pointer = builder.create_int_to_ptr
    memo = LaunchMemo(interpreter.GridExecutor.__call__)

    def noted(self: Any, *args: Any) -> Any:
        memo.has_made_pointer = True
        return make_pointer(self, *args)

    def launch(executor: Any, *args: Any, **kwargs: Any) -> None:
        memo(executor, *args, **kwargs)

    builder.create_int_to_ptr = noted
    interpreter.GridExecutor.__call__ = launch
    return memo
