"""One replay against the eager build of the same step, from the same memory."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from graphparity.fastpath.group_build import GroupBuild
from graphparity.fastpath.proving.group_memory import (
    MemoryImage,
    image_of,
    memory_of,
    restore,
)
from graphparity.fastpath.proving.leaves import Leaf, leaves
from graphparity.fastpath.proving.recordings import Capture


@dataclass(frozen=True)
class BuildResult:
    """What a build left in the group's memory, and the metadata it returned."""

    memory: MemoryImage
    leaves: Mapping[str, Leaf]


@dataclass(frozen=True)
class ReplayedStep:
    """The same step, built three times from the same memory."""

    before: MemoryImage
    replayed: BuildResult
    eager: BuildResult
    eager_as_recorded: BuildResult
    """Built eagerly with the host values of the recording: what a replay that is
    right in all but frozen host bounds leaves.
    """


def replay_step(build: GroupBuild, recorded: Capture, staged: Capture) -> ReplayedStep:
    """Replay ``recorded`` on the inputs of ``staged``, which are staged now."""
    memory = memory_of(build)
    before = image_of(memory)
    if recorded.graph.num_nodes:
        recorded.graph.replay()
    replayed = _result(memory, recorded.metadata)
    restore(memory, before)
    eager = _result(memory, staged.staged_build())
    restore(memory, before)
    as_recorded = _result(memory, recorded.staged_build())
    restore(memory, before)
    return ReplayedStep(before, replayed, eager, as_recorded)


def _result(memory: Mapping[str, torch.Tensor], metadata: object) -> BuildResult:
    return BuildResult(image_of(memory), leaves(metadata))
