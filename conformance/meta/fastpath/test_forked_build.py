"""A forked build is the serial one, but for its maps; what breaks it is caught."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest
import torch

from graphparity.conformance.checks import check_step
from graphparity.conformance.comparer import ParityError
from graphparity.conformance.decode_batches import DecodeBatch
from graphparity.conformance.recorded_anew import forked
from graphparity.conformance.staging import stage
from graphparity.conformance.subjects.subject import Subject
from graphparity.conformance.subjects.torch_decode import torch_decode
from graphparity.fastpath.fork_decision import UNDECIDED
from graphparity.fastpath.forked_build import (
    Branches,
    BranchStaging,
    branches_of,
    packed,
    serial,
)
from graphparity.fastpath.graph_key import GraphKey
from graphparity.fastpath.metadata_graphs import AttnMetadata, BuildFn
from graphparity.fastpath.partial_build import AttnGroups
from graphparity.fastpath.recorders import EmulatedRecorder
from graphparity.fastpath.recorders.emulated_streams import EmulatedSideStream

KEY = GraphKey(3, 4, 6, 8)
OTHER_KEY = GraphKey(4, 4, 8, 8)
BATCH = DecodeBatch(KEY, (5, 9, 17), (3, 1, 2), seed=1)
OWN_MAP = "builders.sliding_window.token_to_req_indices"

State = Any
"""A specialized state, its private parts included."""


def groups(*layers: str) -> AttnGroups:
    """KV-cache groups of one layer each; none where the name is empty."""
    named = [[SimpleNamespace(layer_names=[name])] if name else [] for name in layers]
    return cast("AttnGroups", named)


def tables(*storages: int) -> list[torch.Tensor]:
    """A table a group; those of one number are views of one storage."""
    stored = {number: torch.zeros(4) for number in storages}
    return [stored[number][index:] for index, number in enumerate(storages)]


BRANCHES: dict[str, tuple[list[int], list[Collection[int]], Branches]] = {
    "tables of their own": ([0, 1, 2], [], ((0,), (1,), (2,))),
    "one storage": ([0, 1, 0], [], ((0, 2), (1,))),
    "a tie": ([0, 1, 2], [(2, 0)], ((0, 2), (1,))),
    "a tie of tied groups": ([0, 1, 0], [(1, 2)], ((0, 1, 2),)),
    "ties in a chain": ([0, 1, 2, 3], [(0, 1), (2, 3), (1, 2)], ((0, 1, 2, 3),)),
    "a tie to nobody": ([0, 1], [(0,), ()], ((0,), (1,))),
}


@pytest.mark.parametrize("case", BRANCHES)
def test_tied_groups_share_a_branch_in_serial_order(case: str) -> None:
    """By block-table storage, not by address, and by what the caller names."""
    storages, ties, expected = BRANCHES[case]
    attn_groups = groups(*"abcd"[: len(storages)])
    assert branches_of(attn_groups, tables(*storages), ties) == expected
    assert serial(expected) == (tuple(range(len(storages))),)


def test_groups_without_layers_are_in_no_branch() -> None:
    """Not even by a tie."""
    assert branches_of(groups("a", "", "b"), tables(0, 1, 2), [(0, 1)]) == ((0,), (2,))


def test_two_branches_are_packed_by_weight() -> None:
    """The heaviest first, each to the lighter half; groups stay in serial order."""
    branches = ((0,), (1, 4), (2,), (3,))
    weights = {(0,): 1.0, (1, 4): 5.0, (2,): 3.0, (3,): 2.5}
    assert packed(branches, weights) == ((0, 1, 4), (2, 3))


class Clamping:
    """Three groups; the second clamps in place the table that it shares with the
    first, before which the serial build reads it.
    """

    def __init__(self) -> None:
        self.table = torch.tensor([3, -1, 2])
        self.other_table = torch.tensor([7, 7, 7])
        self.out = torch.zeros((3, 3), dtype=torch.int64)
        memory = [*vars(self).values()]
        self.recorder = EmulatedRecorder(torch.device("cpu:0"), memory)
        self.groups = groups("reader", "clamper", "other")
        self.staging = BranchStaging(self.recorder, self.stage, self.groups)

    @property
    def branches(self) -> Branches:
        """What may run concurrently."""
        return branches_of(self.groups, [self.table, self.table, self.other_table])

    def stage(self, key: GraphKey, attn_groups: AttnGroups) -> BuildFn:
        """Their build."""
        del key

        def build() -> AttnMetadata:
            built: AttnMetadata = {}
            if attn_groups[0]:
                built["reader"] = self.out[0].copy_(self.table)
            if attn_groups[1]:
                built["clamper"] = self.out[1].copy_(self.table.clamp_(min=0))
            if attn_groups[2]:
                built["other"] = self.out[2].copy_(self.other_table)
            return built

        return build

    def replayed(self, branches: Branches) -> tuple[list[str], list[list[int]]]:
        """The layers, and what the replay of a first capture leaves."""
        build = self.staging.build(KEY, branches)
        self.recorder.warm_up(build)
        graph, metadata = self.recorder.capture(build)
        self.table[1] = -1
        self.out.fill_(9)
        graph.replay()
        return list(metadata), self.out.tolist()


CLAMPED = (["reader", "clamper", "other"], [[3, -1, 2], [3, 0, 2], [7, 7, 7]])


def test_groups_over_one_table_keep_their_order() -> None:
    """The clamp is seen by those behind it alone, serial or forked."""
    clamping = Clamping()
    assert clamping.branches == ((0, 1), (2,))
    assert clamping.replayed(clamping.branches) == CLAMPED
    assert clamping.replayed(serial(clamping.branches)) == CLAMPED


def test_a_reordered_clamp_is_caught() -> None:
    """Fault: groups that share block-table storage are put on different branches."""
    layers, out = Clamping().replayed(((0,), (1,), (2,)))
    assert layers == CLAMPED[0]
    assert out[0] == [3, 0, 2]


def test_metadata_is_in_serial_order() -> None:
    """Whatever branch a layer was built in."""
    clamping = Clamping()
    build = clamping.staging.build(KEY, ((0, 2), (1,)))
    assert list(build()) == CLAMPED[0]


def torch_forked(**changes: Any) -> Subject:
    """The torch subject, two keys of it recorded in branches."""
    subject = torch_decode("torch-decode:2", 2, "emulated")
    return forked(subject, (KEY, OTHER_KEY), **changes)


def test_a_forked_state_is_the_serial_one() -> None:
    """Each branch has a map of its own; only where it lies may differ."""
    subject = torch_forked()
    state: State = subject.state
    assert state.fork_decision.branches == ((0,), (1,))
    assert OWN_MAP in subject.branch_maps
    check_step(subject, BATCH)
    check_step(subject, DecodeBatch(OTHER_KEY, (5, 9, 17, 3), (3, 1, 2, 0), seed=2))
    metadata = stage(subject, BATCH).run(subject, state)
    assert list(metadata) == ["compressor", "sliding_window"]
    own = metadata["sliding_window"].token_to_req_indices
    assert own.data_ptr() == subject.memory[OWN_MAP].data_ptr()


def test_a_tied_state_is_recorded_serially() -> None:
    """The reason is reported."""
    subject = torch_forked(tied_groups=lambda state, attn_groups: [(0, 1)])
    state: State = subject.state
    assert state.fork_decision.branches == ((0, 1),)
    assert state.fork_decision.reason == "there can be one branch at most"
    check_step(subject, BATCH)


def test_a_refused_group_is_in_no_branch() -> None:
    """It is built eagerly, beside the others' replay."""
    subject = torch_forked(judge_groups=lambda state, groups: {0: True, 1: False})
    state: State = subject.state
    assert state.fork_decision.branches == ((0,),)
    check_step(subject, BATCH)


def test_a_state_that_records_nothing_has_decided_nothing() -> None:
    """No key, or no group."""
    subject = torch_forked(judge_groups=lambda state, groups: {0: False, 1: False})
    state: State = subject.state
    assert state.fork_decision is UNDECIDED


def test_another_branch_s_map_is_caught() -> None:
    """Fault: the window's branch takes the compressor's map, whose branch may not have
    built it yet.
    """
    subject = torch_decode("torch-decode:2", 2, "emulated")
    eager: State = subject.eager_state
    window, kept = eager.sliding_window, eager.compressor.token_to_req_indices
    sound = window.build

    def build(batch: Any, table: Any, slots: Any, tokens_map: Any, starts: Any) -> Any:
        if tokens_map is None:
            tokens_map = kept[: slots.numel()]
        return sound(batch, table, slots, tokens_map, starts)

    window.build = build
    full_key = GraphKey(8, 8, 16, 16)  # all rows, so that any poison is one
    faulty = forked(subject, (full_key,))
    batch = DecodeBatch(full_key, (5, 9, 17, 3, 30, 31, 32, 12), (*range(8),), seed=1)
    with pytest.raises(ParityError, match=r"sliding_window\.decode_swa"):
        check_step(faulty, batch)


@contextmanager
def without_joins() -> Iterator[None]:
    """The capture stream waits for no side stream."""
    with mock.patch.object(EmulatedSideStream, "join"):
        yield


@contextmanager
def without_forks() -> Iterator[None]:
    """Side streams are no part of any capture."""
    with mock.patch.object(EmulatedSideStream, "fork"):
        yield


@contextmanager
def with_new_streams() -> Iterator[None]:
    """Every build runs on side streams that none ran on before."""
    sound, numbers = EmulatedRecorder.side_stream, count()

    def side_stream(self: EmulatedRecorder, index: int) -> EmulatedSideStream:
        del index
        return sound(self, next(numbers))

    with mock.patch.object(EmulatedRecorder, "side_stream", side_stream):
        yield


STREAM_FAULTS: dict[Callable[[], Any], str] = {
    without_joins: "the capture stream does not wait for it",
    without_forks: "the side stream is not part of the capture",
    with_new_streams: "no warm-up used the side stream",
}


@pytest.mark.parametrize("fault", STREAM_FAULTS)
def test_a_branch_on_the_wrong_stream_is_refused(fault: Callable[[], Any]) -> None:
    """Faults: a missing join, a stream outside of the capture, other streams than in
    the warm-up. No key is recorded, with the reason; steps build eagerly.
    """
    with fault():
        subject = torch_forked()
    state: State = subject.state
    assert state.graphs.refusals.keys() == {KEY, OTHER_KEY}
    assert all(STREAM_FAULTS[fault] in str(it) for it in state.graphs.refusals.values())
    with pytest.raises(ParityError, match="replays of a recording: 0"):
        check_step(subject, BATCH)


def test_an_error_in_a_branch_leaves_the_state_usable() -> None:
    """It can be recorded again."""
    subject = torch_forked()
    state: State = subject.state
    record = partial(
        state.capture_inner_cudagraphs,
        subject.input_buffers,
        subject.block_tables,
        subject.attn_groups,
        subject.kv_cache_config,
    )

    def fail(*step: Any) -> None:
        raise RuntimeError("planted in a branch")

    with (
        mock.patch.object(state.sliding_window, "build", fail),
        pytest.raises(RuntimeError, match="planted in a branch"),
    ):
        record()
    record()
    subject.addresses.clear()
    check_step(subject, BATCH)
