"""A build as branches: KV-cache groups on concurrent streams, joined before it returns.

Groups see each other in four ways, and those that do share a branch, in serial order:
a builder may clamp a block table in place, whose storage another group reads; metadata
may be derived from another group's; builders may write one buffer; and the first group
that needs a token-to-request map builds it for those after it. The first three are
ties, of which the caller names what tables do not tell. The map is none: every branch
makes its own, in the buffer of its first builder that needs one. The serial build's
first such builder is the first of its branch as well, since branches keep the serial
order, so it fills the buffer that FULL forward graphs read.

Invariant: metadata and memory are the serial build's, but for where the other branches
have their maps.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import torch

from graphparity.fastpath.graph_key import GraphKey
from graphparity.fastpath.metadata_graphs import AttnMetadata, BuildFn
from graphparity.fastpath.partial_build import AttnGroups, masked
from graphparity.fastpath.recorders.protocol import Recorder

Branches = tuple[tuple[int, ...], ...]
"""The KV-cache groups of each branch, by index, in serial order; one branch is the
serial build."""
TiedGroups = Callable[[Any, AttnGroups], Iterable[Collection[int]]]
"""Says of a state's KV-cache groups, by index, which must share a branch, besides those
whose block tables share storage."""
StageGroups = Callable[[GraphKey, AttnGroups], BuildFn]
"""Prepares a dummy step of a key, and returns the build of the groups given."""


def used_groups(attn_groups: AttnGroups) -> tuple[int, ...]:
    """The indices of the groups that have layers."""
    return tuple(index for index, groups in enumerate(attn_groups) if groups)


def branches_of(
    attn_groups: AttnGroups,
    block_tables: Sequence[torch.Tensor],
    ties: Iterable[Collection[int]] = (),
) -> Branches:
    """As many branches as may run concurrently.

    Args:
        attn_groups: the groups that are built; a masked one is in no branch.
        block_tables: [num_kv_cache_groups] the table of each (device).
        ties: groups that must share a branch besides.
    """
    used = {*used_groups(attn_groups)}
    by_storage: dict[int, set[int]] = {}
    for index in used:
        storage = block_tables[index].untyped_storage().data_ptr()
        by_storage.setdefault(storage, set()).add(index)
    branches: list[set[int]] = []
    for tie in (*by_storage.values(), *(used & {*it} for it in ties)):
        touched = [branch for branch in branches if branch & tie]
        branches = [branch for branch in branches if not branch & tie]
        branches.append(tie.union(*touched))
    return tuple(sorted(tuple(sorted(branch)) for branch in branches if branch))


def serial(branches: Branches) -> Branches:
    """All groups in one branch."""
    return (tuple(sorted(chain.from_iterable(branches))),)


def packed(branches: Branches, weights: Mapping[tuple[int, ...], float]) -> Branches:
    """Two branches of about equal weight.

    Args:
        branches: what must stay together.
        weights: what each takes, in any unit.
    """
    halves: tuple[list[int], list[int]] = ([], [])
    taken = [0.0, 0.0]
    for branch in sorted(branches, key=lambda it: (-weights[it], it)):
        lighter = int(taken[1] < taken[0])
        halves[lighter].extend(branch)
        taken[lighter] += weights[branch]
    return tuple(sorted(tuple(sorted(half)) for half in halves))


class ForkedBuild:
    """Branches of one build, called like the serial build.

    The first branch runs on the stream of the caller, each other one on a side stream
    of the recorder: the same in a warm-up and in a capture.

    Args:
        recorder: whose side streams they run on.
        builds: the build of each branch.
        layer_order: every layer, in the order of the serial build.
    """

    def __init__(
        self,
        recorder: Recorder,
        builds: Sequence[BuildFn],
        layer_order: Sequence[str],
    ) -> None:
        self._first, *self._others = builds
        self._recorder = recorder
        self._layer_order = layer_order

    def __call__(self) -> AttnMetadata:
        """Build all branches, and join them."""
        streams = [self._recorder.side_stream(i) for i in range(len(self._others))]
        for stream in streams:
            stream.fork()
        built = dict(self._first())
        for stream, build in zip(streams, self._others, strict=True):
            with stream.use():
                built.update(build())
        for stream in streams:
            stream.join()
        return {name: built[name] for name in self._layer_order}


class BranchStaging:
    """Stages builds as branches.

    Args:
        recorder: whose side streams they run on.
        stage: stages the build of some groups.
        attn_groups: all groups to build.
    """

    def __init__(
        self, recorder: Recorder, stage: StageGroups, attn_groups: AttnGroups
    ) -> None:
        self._recorder, self._stage = recorder, stage
        self._attn_groups = attn_groups

    def build(self, key: GraphKey, branches: Branches) -> BuildFn:
        """Stage a dummy step of ``key``; returns its build, forked if there is more
        than one branch.
        """
        groups = [masked(self._attn_groups, branch) for branch in branches]
        builds = [self._stage(key, branch) for branch in groups]
        if len(builds) == 1:
            return builds[0]
        return ForkedBuild(self._recorder, builds, self._layer_order(branches))

    def _layer_order(self, branches: Branches) -> list[str]:
        return [
            name
            for index in serial(branches)[0]
            for group in self._attn_groups[index]
            for name in group.layer_names
        ]
