"""How faults are planted: one callable is replaced while a context manager is active.

The replacement gets the sound callable first, then its arguments. Most faults act only
while a recorder captures: the eager build, which shares builders and classes with the
state under test, stays sound.
"""

import copy
import functools
import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import torch

from graphparity.fastpath.recorders import EmulatedRecorder

SPECIALIZE: Any = importlib.import_module("graphparity.fastpath.specialize")
"""The module: in its package, the name is that of the function."""
STATE = SPECIALIZE._SpecializedModelState
"""What every specialized state has before its base."""

Faulty = Callable[..., Any]
"""Takes the sound callable, and what it is called with."""


def replaced(owner: Any, name: str, faulty: Faulty) -> AbstractContextManager[Any]:
    """``owner``'s callable of that name is the faulty one, always."""
    sound = getattr(owner, name)

    @functools.wraps(sound)
    def call(*args: Any, **kwargs: Any) -> Any:
        return faulty(sound, *args, **kwargs)

    return mock.patch.object(owner, name, call)


def while_capturing(
    owner: Any, name: str, faulty: Faulty
) -> AbstractContextManager[Any]:
    """``owner``'s callable of that name is the faulty one in captures alone."""

    def call(sound: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if is_capturing():
            return faulty(sound, *args, **kwargs)
        return sound(*args, **kwargs)

    return replaced(owner, name, call)


def is_capturing() -> bool:
    """Whether a recorder captures in this process."""
    if EmulatedRecorder._session is not None:
        return True
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def diverted(builder: Any, *buffers: str) -> Any:
    """A twin of ``builder`` that writes scratch in place of the buffers named: what is
    captured of it never reaches them.
    """
    twin = copy.copy(builder)
    for name in buffers:
        setattr(twin, name, torch.zeros_like(getattr(builder, name)))
    return twin
