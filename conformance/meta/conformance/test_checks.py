"""The checks pass a sound subject, and catch every planted fault by its path."""

import re
from collections.abc import Callable
from textwrap import dedent
from typing import Any

import pytest

from graphparity.conformance.checks import check_history, check_step
from graphparity.conformance.comparer import ParityError
from graphparity.conformance.decode_batches import (
    DecodeBatch,
    DummyBatch,
    EagerBatch,
    PrefillBatch,
    Step,
)
from graphparity.conformance.faults.catalogue import FAULTS as PLANTED_FAULTS
from graphparity.conformance.meta.conformance import faulty_subjects as faults
from graphparity.conformance.reference_check import check_eager_equals_reference
from graphparity.conformance.subjects.registry import fresh_subject
from graphparity.conformance.subjects.subject import Subject
from graphparity.conformance.subjects.torch_decode import torch_decode
from graphparity.conformance.tally import Tally
from graphparity.fastpath.graph_key import GraphKey

Maker = Callable[[str, int, str], Subject]

KEY = GraphKey(3, 4, 6, 8)
BATCH = DecodeBatch(KEY, (5, 16, 17), (3, 1, 2), seed=1)
LATER = DecodeBatch(KEY, (6, 18, 41), (0, 4, 2), seed=2)
PREFILL = PrefillBatch((3, 4), (7, 9), (0, 0), (1, 2), seed=3)
REPLAYING = PrefillBatch((3, 4), (7, 9), (3, 5), (1, 2), seed=3)

FAULTS: dict[str, tuple[Maker, list[Step], list[str]]] = {
    "frozen host field": (
        faults.frozen_host_field,
        [BATCH],
        ["sliding_window.num_decodes: 99, but should be 4\n"],
    ),
    "wrong position read": (
        faults.wrong_position_read,
        [BATCH],
        ["compressor.slot_mapping[", "builders.compressor.slot_mapping_buffer["],
    ),
    "overwritten input": (
        faults.overwritten_input,
        [BATCH],
        [
            "input_buffers.input_ids: written, but should be left as it was\n",
            "input_buffers.input_ids[(0,)]: ",
        ],
    ),
    "input written alike by both sides": (
        faults.undeclared_input_write,
        [BATCH],
        ["input_buffers.input_ids: written, but should be left as it was\n"],
    ),
    "declared input written by one side": (
        faults.declared_input_write_of_one_side,
        [BATCH],
        ["input_buffers.input_ids[(0,)]: "],
    ),
    "write outside the outputs": (
        faults.write_outside_outputs,
        [BATCH],
        ["builders.compressor.token_range: written, but should be left as it was\n"],
    ),
    "no replay": (
        faults.never_replays,
        [BATCH],
        ["replays of a recording: 0, but should be 1\n"],
    ),
    "replay on a dummy step": (
        faults.replays_always,
        [BATCH, DummyBatch(KEY)],
        ["replays of a recording: 1, but should be 0\n"],
    ),
    "replay on a prefill": (
        faults.replays_always,
        [BATCH, PREFILL],
        [
            "replays of a recording: 1, but should be 0\n",
            "compressor.slot_mapping: present, but should be absent\n",
        ],
    ),
    "upload skipped after a step that replays": (
        faults.skipped_upload,
        [BATCH, REPLAYING, LATER],
        ["state._replay_start[(0,), (1,)]: [3, 5], but should be [0, 0]\n"],
    ),
}
"""Fault -> its maker, a history whose last step shows it, lines of the error."""

PLANTED: dict[str, tuple[list[Step], list[str]]] = {
    "padded_lengths_are_one": (
        [BATCH],
        ["sliding_window.decode_swa_lens[(6,), (7,)]: [1, 1], but should be [0, 0]\n"],
    ),
    "longest_length_frozen": (
        [BATCH],
        [
            "sliding_window.decode_swa_lens[(0,), (1,)]: [8, 8], but should be [4, 5]",
            "sliding_window.decode_swa_indices[",
        ],
    ),
    "slots_in_a_fresh_tensor": (
        [BATCH],
        ["compressor.slot_mapping: outside the builders' buffers, but should be "],
    ),
    "replays_rebuild_their_tensors": (
        [BATCH, LATER],
        ["compressor.slot_mapping: replayed at 0x", "compressor.slot_mapping: at ("],
    ),
}
"""Planted fault -> a history whose last step shows it, lines of the error."""

STATES_ALONE = [name for name, (_, steps, _) in FAULTS.items() if len(steps) == 1]


def caught(maker: Maker, history: list[Step]) -> str:
    """The error of the last step of a history, whose other steps pass."""
    subject = maker(faults.name_of(maker, 2), 2, "emulated")
    with pytest.raises(ParityError) as error:
        check_history(subject, history)
    return str(error.value)


def snippet(message: str) -> str:
    """The lines of an error that repeat it."""
    return dedent(message.split("To repeat it:\n")[1])


def without_addresses(message: str) -> str:
    """The message, with the addresses of this process's memory left out."""
    return re.sub(r"0x[0-9a-f]+|at \(\d+", "ADDRESS", message)


def run_snippet(message: str) -> str:
    """What running the snippet of an error raises."""
    namespace: dict[str, Any] = {}
    with pytest.raises(ParityError) as error:
        exec(snippet(message), namespace)
    return str(error.value)


def history_of(subject: Subject) -> list[Step]:
    """Every kind of step, each followed by decode steps."""
    steps: list[Step] = []
    for key in subject.graph_keys:
        rows = range(key.num_reqs)
        lengths = tuple(7 + 3 * row for row in rows)
        batch = DecodeBatch(key, lengths, tuple(reversed(rows)), seed=key.num_reqs)
        steps += [batch, DummyBatch(key), batch, EagerBatch(batch), PREFILL, batch]
    return steps


@pytest.mark.parametrize("query_len", [1, 2, 3])
def test_sound_subject_passes_every_kind_of_step(query_len: int) -> None:
    """Every key, between prefills, dummy and eager steps; each is tallied."""
    subject = torch_decode(f"torch-decode:{query_len}", query_len, "emulated")
    steps, tally = history_of(subject), Tally()
    for step in steps:
        check_step(subject, step, tally)
    num_decodes = sum(isinstance(step, DecodeBatch) for step in steps)
    assert (tally.batches, tally.steps_replayed) == (len(steps), num_decodes)
    assert tally.fields_compared > len(steps) * len(subject.memory)


@pytest.mark.parametrize("query_len", [1, 2, 3])
def test_sound_subject_equals_the_reference(query_len: int) -> None:
    """The same steps, eager against the reference."""
    subject = torch_decode(f"torch-decode:{query_len}", query_len, "emulated")
    for step in history_of(subject):
        if not isinstance(step, EagerBatch):
            check_eager_equals_reference(subject, step)


def test_sound_subject_passes_a_prefill_that_replays() -> None:
    """Uploading non-zero replay starts is no undeclared write."""
    subject = torch_decode("torch-decode:2", 2, "emulated")
    for step in (BATCH, REPLAYING, LATER):
        check_step(subject, step)


def test_declared_in_place_input_may_be_written_alike() -> None:
    """As a gather of lookback tokens writes its buffer on both sides."""
    maker = faults.declared_input_write
    check_step(maker(faults.name_of(maker, 2), 2, "emulated"), BATCH)


@pytest.mark.parametrize(("maker", "history", "lines"), FAULTS.values(), ids=FAULTS)
def test_fault_is_caught_by_its_path(
    maker: Maker, history: list[Step], lines: list[str]
) -> None:
    """Every path it shows at, the subject, the key, and how to repeat it."""
    message = caught(maker, history)
    assert [line for line in lines if f"\n  {line}" not in message] == []
    name = faults.name_of(maker, 2)
    step = history[-1]
    assert f"the state under test against the eager build of {name}" in message
    assert (f"[{KEY}]" in message) is isinstance(step, DecodeBatch)
    assert f"check_history(load_subject({name!r}), {history!r})" in snippet(message)


@pytest.mark.parametrize("name", PLANTED)
def test_planted_fault_is_caught_by_its_path(name: str) -> None:
    """In the rows that it spoils, and only where the history has come to it."""
    history, lines = PLANTED[name]
    with PLANTED_FAULTS[name].plant():
        subject = fresh_subject("torch-decode:2")
        check_history(subject, history[:-1])
        with pytest.raises(ParityError) as error:
            check_step(subject, history[-1])
    assert [line for line in lines if f"\n  {line}" not in str(error.value)] == []


@pytest.mark.parametrize("fault", STATES_ALONE)
def test_snippet_raises_the_same_error(fault: str) -> None:
    """It runs as printed, in a namespace of its own."""
    maker, history, _ = FAULTS[fault]
    message = caught(maker, history)
    assert without_addresses(run_snippet(message)) == without_addresses(message)


@pytest.mark.parametrize("fault", [it for it in FAULTS if it not in STATES_ALONE])
def test_snippet_of_a_history_raises_the_same_error(fault: str) -> None:
    """What only a history shows is repeated with that history."""
    maker, history, _ = FAULTS[fault]
    message = caught(maker, history)
    assert without_addresses(run_snippet(message)) == without_addresses(message)


def test_number_of_differences_is_the_number_of_lines() -> None:
    """Nothing is left out of the list."""
    message = caught(faults.wrong_position_read, [BATCH])
    listed = message.split("To repeat it:")[0].strip().splitlines()[1:]
    assert message.startswith(f"{len(listed)} difference(s): ")


def test_memory_goes_on_from_the_state_under_test() -> None:
    """A fault of one step can show in a later step of the history."""
    maker = faults.declared_input_write_of_one_side
    subject = maker(faults.name_of(maker, 2), 2, "emulated")
    token_ids = subject.input_buffers.input_ids
    with pytest.raises(ParityError, match=r"input_ids\[\(0,\)\]: \[(\d+)\]") as error:
        check_step(subject, BATCH)
    shown = re.search(r"input_ids\[\(0,\)\]: \[(\d+)\]", str(error.value))
    assert shown is not None
    assert int(token_ids[0]) == int(shown[1])


def test_fault_of_both_sides_is_caught_by_the_reference() -> None:
    """A window one short at a block's end passes the replay check alone."""
    maker = faults.window_short_at_block_edges
    subject = maker(faults.name_of(maker, 2), 2, "emulated")
    check_step(subject, BATCH)
    with pytest.raises(ParityError) as error:
        check_eager_equals_reference(subject, BATCH)
    message = str(error.value)
    line = "sliding_window.decode_swa_lens[(2,), (3,)]: [7, 7], but should be [8, 8]"
    assert f"\n  {line}\n" in message
    assert without_addresses(run_snippet(message)) == without_addresses(message)


def test_fault_at_an_edge_does_not_show_off_it() -> None:
    """The drawn lengths have to reach the edges; these do not."""
    maker = faults.window_short_at_block_edges
    subject = maker(faults.name_of(maker, 2), 2, "emulated")
    check_eager_equals_reference(subject, LATER)
