"""One replay against the eager build of the same step, from the same memory."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch

from graphparity.fastpath.group_build import GroupBuild
from graphparity.fastpath.proving.fresh_memory import (
    build_over_fills,
    define_as,
)
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
    replayed = result_of(memory, recorded.metadata)
    eager = eager_result(memory, before, staged.staged_build, replayed)
    as_recorded = eager_result(memory, before, recorded.staged_build, replayed)
    restore(memory, before)
    return ReplayedStep(before, replayed, eager, as_recorded)


def result_of(memory: Mapping[str, torch.Tensor], metadata: object) -> BuildResult:
    """What a build that returned ``metadata`` left in ``memory``."""
    return BuildResult(image_of(memory), leaves(metadata))


def eager_result(
    memory: Mapping[str, torch.Tensor],
    before: MemoryImage,
    build: Callable[[], object],
    replayed: BuildResult,
) -> BuildResult:
    """What an eager build leaves; elements that it leaves undefined are as replayed.

    Args:
        memory: all that the build reads and writes.
        before: what ``memory`` held before the replay.
        build: the eager build, which returns metadata; on a GPU it is called twice.
        replayed: what the replay left.
    """

    def build_again() -> BuildResult:
        restore(memory, before)
        return result_of(memory, build())

    devices = {tensor.device for tensor in memory.values()}
    return _defined(replayed, *build_over_fills(devices, build_again))


def _defined(
    replayed: BuildResult, first: BuildResult, second: BuildResult
) -> BuildResult:
    defined = {
        path: define_as(replayed.memory[path], image, second.memory[path])
        for path, image in first.memory.items()
    }
    found = dict(first.leaves)
    for path, leaf in first.leaves.items():
        values = [it.leaves.get(path, Leaf(None)).value for it in (replayed, second)]
        if all(isinstance(value, torch.Tensor) for value in [leaf.value, *values]):
            value = define_as(values[0], leaf.value, values[1])
            found[path] = replace(leaf, value=value)
    return BuildResult(defined, found)
