"""The recorders a subject can be recorded with, by name."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from graphparity.conformance.memory import Memory
from graphparity.conformance.subjects.subject import MeteredRecorder
from graphparity.fastpath.recorders import (
    CudaRecorder,
    EmulatedRecorder,
    Recorder,
    require_cuda,
)


@dataclass(frozen=True)
class RecorderKind:
    """A recorder, and where the subject's device memory lies under it."""

    device: torch.device
    max_num_seqs: int
    """The most requests a step of vLLM's subjects holds."""
    make: Callable[[torch.device, Memory, Iterable[torch.Tensor]], Recorder]


def _emulated(
    device: torch.device, memory: Memory, rotating_memory: Iterable[torch.Tensor]
) -> Recorder:
    return EmulatedRecorder(
        device, memory.values(), rotating_memory=tuple(rotating_memory)
    )


def _cuda(
    device: torch.device, memory: Memory, rotating_memory: Iterable[torch.Tensor]
) -> Recorder:
    return CudaRecorder()


RECORDERS = {
    "emulated": RecorderKind(torch.device("cpu:0"), 16, _emulated),
    "cuda": RecorderKind(torch.device("cuda:0"), 64, _cuda),
}


def recorder_kind(name: str) -> RecorderKind:
    """The recorder of that name.

    Raises:
        ValueError: there is none.
        RuntimeError: it cannot work on this machine.
    """
    if name not in RECORDERS:
        raise ValueError(
            f"unknown recorder {name!r}: use one of {', '.join(sorted(RECORDERS))}."
        )
    if name == "cuda":
        require_cuda()
    return RECORDERS[name]


def make_recorder(
    name: str, memory: Memory, rotating_memory: Iterable[torch.Tensor] = ()
) -> MeteredRecorder:
    """A metered recorder for code that runs on ``memory``.

    Raises:
        ValueError: there is no recorder of that name.
        RuntimeError: the recorder cannot work on this machine.
    """
    kind = recorder_kind(name)
    return MeteredRecorder(kind.make(kind.device, memory, rotating_memory))
