"""A capture frees no other graph by the way."""

import gc
import weakref
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from graphparity.fastpath.recorders import CudaRecorder, cuda
from graphparity.fastpath.recorders.garbage_collection import no_garbage_collection


class InACycle:
    """What only a collection frees."""

    def __init__(self) -> None:
        self.itself = self


def survives_many_allocations() -> bool:
    """Whether garbage outlives more allocations than a collection awaits."""
    garbage = weakref.ref(InACycle())
    _ = [[] for _ in range(100_000)]
    return garbage() is not None


@pytest.fixture(autouse=True)
def collection() -> Iterator[None]:
    """Collection is on, before and after."""
    assert gc.isenabled()
    yield
    gc.enable()


def test_garbage_survives_within_alone() -> None:
    """It is collected again afterwards, also after an error."""
    assert not survives_many_allocations()
    with no_garbage_collection():
        assert survives_many_allocations()
    with pytest.raises(RuntimeError), no_garbage_collection():
        raise RuntimeError
    assert not survives_many_allocations()


def test_collection_that_was_off_stays_off() -> None:
    """As in a process that froze it for its own captures."""
    gc.disable()
    with no_garbage_collection():
        pass
    assert not gc.isenabled()


def test_a_cuda_capture_collects_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """From its begin to its end; CUDA's part is stood in for."""
    enabled: list[bool] = []

    def note(**_: object) -> None:
        enabled.append(gc.isenabled())

    graph = SimpleNamespace(
        capture_begin=note, capture_end=note, instantiate=note, replay=note
    )
    stream = SimpleNamespace(wait_stream=lambda _: None)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda **_: graph)
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(cuda, "nodes_of", lambda _: ())
    recorder: Any = CudaRecorder.__new__(CudaRecorder)
    recorder._stream, recorder._pool = stream, (0, 0)
    recorder.capture(note)
    assert enabled == [False, False, False, True]
