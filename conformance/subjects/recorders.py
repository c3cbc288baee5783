"""The recorders a subject can be recorded with, by name."""

from collections.abc import Callable, Iterable

import torch

from graphparity.conformance.memory import Memory
from graphparity.conformance.subjects.subject import MeteredRecorder
from graphparity.fastpath.recorders import EmulatedRecorder, Recorder

MakeRecorder = Callable[[torch.device, Memory, Iterable[torch.Tensor]], Recorder]


def _emulated(
    device: torch.device, memory: Memory, rotating_memory: Iterable[torch.Tensor]
) -> Recorder:
    return EmulatedRecorder(
        device, memory.values(), rotating_memory=tuple(rotating_memory)
    )


RECORDERS: dict[str, MakeRecorder] = {"emulated": _emulated}


def make_recorder(
    name: str,
    device: torch.device,
    memory: Memory,
    rotating_memory: Iterable[torch.Tensor] = (),
) -> MeteredRecorder:
    """A metered recorder for code that runs on ``memory``.

    Raises:
        ValueError: there is no recorder of that name.
    """
    if name not in RECORDERS:
        raise ValueError(
            f"unknown recorder {name!r}: use one of {', '.join(sorted(RECORDERS))}."
        )
    return MeteredRecorder(RECORDERS[name](device, memory, rotating_memory))
