"""The random lives of requests pass a sound subject and find planted faults."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from graphparity.conformance.checks import check_step
from graphparity.conformance.comparer import ParityError
from graphparity.conformance.decode_batches import DecodeBatch
from graphparity.conformance.faults.catalogue import FAULTS as PLANTED_FAULTS
from graphparity.conformance.meta.conformance import faulty_subjects as faults
from graphparity.conformance.request_pool import RequestPool
from graphparity.conformance.staging import stage
from graphparity.conformance.state_machine import run_state_machine
from graphparity.conformance.subjects.subject import Subject
from graphparity.conformance.subjects.torch_decode import torch_decode
from graphparity.conformance.tally import Tally
from graphparity.fastpath.graph_key import GraphKey

Maker = Callable[[str, int, str], Subject]

LIVES = settings(
    max_examples=12,
    stateful_step_count=20,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)

FAULTS: dict[Maker, str] = {
    faults.wrong_position_read: "compressor.slot_mapping",
    faults.skipped_upload: "state._replay_start",
    faults.never_replays: "replays of a recording: 0, but should be 1",
}


PLANTED = {
    "padded_lengths_are_one": "sliding_window.decode_swa_lens",
    "longest_length_frozen": "sliding_window.decode_swa_indices",
}


def lives(subject: Subject, *, releases: bool = False) -> Tally:
    """What the lives on ``subject`` checked."""
    tally = Tally()
    run_state_machine(subject, tally, LIVES, releases=releases)
    return tally


@pytest.mark.parametrize(
    ("fault", "path"), FAULTS.items(), ids=[fault.__name__ for fault in FAULTS]
)
def test_planted_fault_is_found(fault: Maker, path: str) -> None:
    """Some life meets it, and the error names the path."""
    with pytest.raises(ParityError) as caught:
        lives(fault(fault.__name__, 2, "emulated"))
    assert path in str(caught.value)


@pytest.mark.parametrize(("name", "path"), PLANTED.items(), ids=PLANTED)
def test_fault_of_a_public_report_is_found(name: str, path: str) -> None:
    """As the faults above."""
    with PLANTED_FAULTS[name].plant():
        subject = torch_decode("torch-decode:2", 2, "emulated")
        with pytest.raises(ParityError) as caught:
            lives(subject)
    assert path in str(caught.value)


def test_recordings_that_outlive_a_release_are_found() -> None:
    """A state that goes on replaying after its KV cache was replaced."""
    subject = torch_decode("torch-decode:2", 2, "emulated")
    graphs: Any = vars(subject.state)["graphs"]
    graphs.release = lambda: None
    with pytest.raises(ParityError, match="replays of a recording: 1, but should be 0"):
        lives(subject, releases=True)


def test_sound_subject_passes_and_is_left_recorded() -> None:
    """Replays among all kinds of steps; every key is recorded afterwards."""
    subject = torch_decode("torch-decode:2", 2, "emulated")
    tally = lives(subject, releases=True)
    assert tally.batches > tally.steps_replayed > 20
    assert subject.recorder.num_captures > len(subject.graph_keys)
    check_step(subject, DecodeBatch(GraphKey(2, 2, 4, 4), (5, 9), (1, 0)))


def test_freed_blocks_and_rows_are_handed_out_next() -> None:
    """A request's blocks are distinct from others', and the last freed come first."""
    pool = RequestPool(torch_decode("torch-decode:1", 1, "emulated"))
    first, second = pool.admit(17, 0, 0), pool.admit(9, 0, 0)
    ring, window = pool.hold([first, second], [17, 9])
    assert [len(ids) for ids in ring] == [1, 1]
    assert [len(ids) for ids in window] == [3, 2]
    held = [block for ids in (*ring, *window) for block in ids]
    assert len(set(held)) == len(held)
    assert 0 not in held
    pool.free(first)
    third = pool.admit(8, 0, 0)
    assert third.index == first.index
    pool.hold([third], [8])
    assert {*third.block_ids[0], *third.block_ids[1]} <= {*ring[0], *window[0]}


def test_given_blocks_reach_tables_and_slots() -> None:
    """A live token's slot lies in the block that its request was given."""
    subject = torch_decode("torch-decode:1", 1, "emulated")
    key = GraphKey(2, 2, 2, 2)
    blocks = (((7,), (8,)), ((21, 22), (23,)))
    staged = stage(subject, DecodeBatch(key, (10, 8), (1, 0), block_ids=blocks))
    ring, window = staged.block_tables
    assert ring[:, 0].tolist() == [7, 8]
    assert window[0, :2].tolist() == [21, 22]
    assert window[1, 0] == 23
    assert staged.slot_mappings[1].tolist() == [22 * 8 + 1, 23 * 8 + 7]
