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

from graphparity.fastpath.graph_key import graph_key
from graphparity.fastpath.metadata_graphs import MetadataGraphs
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


def looked_up(faulty: Faulty) -> AbstractContextManager[Any]:
    """Recordings are looked up by the faulty callable: it takes the sound look-up, the
    ``MetadataGraphs`` and the key, and returns a recording or None.
    """

    def initialize(sound: Any, graphs: Any, *args: Any) -> None:
        sound(graphs, *args)
        graphs.recording_of = functools.partial(faulty, graphs.recording_of, graphs)

    return replaced(MetadataGraphs, "__init__", initialize)


def served_as(seen: Callable[..., tuple[Any, bool]]) -> AbstractContextManager[Any]:
    """A step is served by a recording as if it were what is seen of it.

    Args:
        seen: takes the batch and ``for_capture``, and returns what is taken for them.
    """

    def serve(sound: Any, state: Any, batch: Any, *step: Any, **kwargs: Any) -> Any:
        taken_for, for_capture = seen(batch, kwargs["for_capture"])
        if (
            state._eager_reason(taken_for, step[0], for_capture, 0) is None
            and graph_key(taken_for) in state.graphs.recordings
        ):
            kwargs = {**kwargs, "for_capture": for_capture}
            return sound(state, taken_for, *step, **kwargs)
        return sound(state, batch, *step, **kwargs)

    return replaced(STATE, "_replay_or_build", serve)


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
