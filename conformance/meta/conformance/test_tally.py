"""What a run counts: which group a path is of, what was frozen, what failed."""

import json
from dataclasses import asdict
from types import SimpleNamespace

import pytest

from graphparity.conformance.attention_groups import SHARED, GroupOfPath
from graphparity.conformance.comparer import Difference, Mismatch, ParityError
from graphparity.conformance.environment import commit_of
from graphparity.conformance.failures import failures_of
from graphparity.conformance.results import SubjectResult
from graphparity.conformance.tally import NO_KEY, Tally, key_id
from graphparity.fastpath.graph_key import GraphKey

KEY = GraphKey(3, 4, 6, 8)

ATTN_GROUPS = [
    [SimpleNamespace(layer_names=["layers.1.attn", "layers.2.attn"])],
    [
        SimpleNamespace(layer_names=["layers.10.attn"]),
        SimpleNamespace(layer_names=["layers.10.attn.indexer"]),
    ],
]

GROUPS = {
    "layers.1.attn.max_seq_len": "layers.1.attn",
    "layers.2.attn.seq_lens[(0,), (1,)]": "layers.1.attn",
    "layers.10.attn.seq_lens": "layers.10.attn",
    "layers.10.attn.indexer.seq_lens": "layers.10.attn.indexer",
    "layers.10.attn": "layers.10.attn",
    "builders.layers.1.attn.buffer": "layers.1.attn",
    "block_tables.input_block_tables[1][(0, 3)]": "layers.10.attn",
    "block_tables.block_tables[0].gpu": "layers.1.attn",
    "block_tables.slot_mappings": SHARED,
    "layers.100.attn.seq_lens": SHARED,
    "replays of a recording": SHARED,
}


@pytest.mark.parametrize(("path", "group"), GROUPS.items(), ids=GROUPS)
def test_path_is_of_the_group_of_its_layer_or_table(path: str, group: str) -> None:
    """The longest layer name wins; asked again, the answer is the same."""
    groups = GroupOfPath(ATTN_GROUPS)
    assert [groups[path], groups[path]] == [group, group]


def test_value_that_two_replays_returned_unlike_is_not_frozen() -> None:
    """It was made anew; another key's value stays what it was."""
    tally = Tally()
    for key, value in ((KEY, "4"), (GraphKey(1, 1, 2, 2), "1"), (KEY, "5")):
        tally.note_frozen(key, "attn", "num_decodes", value)
    assert tally.frozen == {"attn": {"num_decodes": {"3x4x6x8": None, "1x1x2x2": "1"}}}


def test_cells_tell_groups_keys_and_eager_steps_apart() -> None:
    """A replay counts for the groups that it built, fields for the row of their key."""
    tally = Tally()
    tally.count_batch(KEY, {"attn": 3, "indexer": 2})
    tally.count_decode_step(KEY, 1, ["attn"])
    tally.count_batch(None, {"attn": 5})
    replayed, eager = tally.cells[key_id(KEY)], tally.cells[NO_KEY]
    assert (replayed["attn"].steps_replayed, replayed["attn"].fields_compared) == (1, 3)
    assert replayed["indexer"].steps_replayed == 0
    assert eager["attn"].fields_compared == 5
    assert (tally.batches, tally.fields_compared) == (2, 10)


def test_result_comes_back_from_json_as_it_was() -> None:
    """The table is made of what the progress file holds."""
    tally = Tally()
    tally.count_batch(KEY, {"attn": 3})
    tally.note_frozen(KEY, "attn", "num_decodes", "4")
    result = SubjectResult("torch-decode:2", "emulated", 1, tally, 0.5, ["3x4x6x8"])
    assert SubjectResult.of_json(json.loads(json.dumps(asdict(result)))) == result


def test_each_error_of_a_group_is_a_failure_of_its_own() -> None:
    """Hypothesis raises distinct errors together; one that no check raised keeps its
    type and message.
    """
    found = (Difference("layers.1.attn.seq_lens", "[1]", "[2]"),)
    mismatch = Mismatch(
        "torch-decode:2", "replay", found, ("layers.1.attn",), KEY, 3, "step", "call()"
    )
    error = ExceptionGroup("two", [ParityError(mismatch), ValueError("no such row")])
    parity, other = failures_of("test_it", "torch-decode:2", error)
    assert (parity.key, parity.item, parity.repeat) == ("3x4x6x8", 3, "call()")
    assert [it.group for it in parity.found] == ["layers.1.attn"]
    assert (other.title, other.message) == ("ValueError", "no such row")


@pytest.mark.parametrize(
    ("version", "commit"),
    {
        "0.1.1.dev4+gcdee043": "cdee043",
        "0.1.1.dev4+gcdee043.d20261201": "cdee043",
        "0.1.0": "not told by the version",
        "not installed": "not told by the version",
    }.items(),
)
def test_commit_is_that_of_the_version(version: str, commit: str) -> None:
    """A version made from git tags names it; another does not."""
    assert commit_of(version) == commit
