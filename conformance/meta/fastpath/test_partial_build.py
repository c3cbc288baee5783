"""Refused groups are built eagerly in the step that replays the others."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from graphparity.conformance.checks import check_step
from graphparity.conformance.comparer import ParityError
from graphparity.conformance.decode_batches import DecodeBatch, EagerBatch
from graphparity.conformance.partly_recorded import partly_recorded
from graphparity.conformance.staging import stage
from graphparity.conformance.subjects.subject import Subject
from graphparity.conformance.subjects.torch_decode import torch_decode
from graphparity.fastpath.graph_key import GraphKey
from graphparity.fastpath.metadata_graphs import EagerReason
from graphparity.fastpath.partial_build import AttnGroups, GroupSplit, split_groups

KEY = GraphKey(3, 4, 6, 8)
BATCH = DecodeBatch(KEY, (5, 9, 17), (3, 1, 2), seed=1)
COMPRESSOR, WINDOW = 0, 1
OWN_MAP = "builders.sliding_window.token_to_req_indices"

State = Any
"""A specialized state, its private parts included."""


def partly(*refused: int) -> Subject:
    """The torch subject, its ``refused`` groups built eagerly."""
    return partly_recorded(
        torch_decode("torch-decode:2", 2, "emulated"), refused, (KEY,)
    )


def built(subject: Subject) -> dict[str, Any]:
    """The metadata of one decode step."""
    metadata: dict[str, Any] = stage(subject, BATCH).run(subject, subject.state)
    return metadata


@pytest.mark.parametrize("refused", [COMPRESSOR, WINDOW])
def test_merged_metadata_is_in_serial_order(refused: int) -> None:
    """The recorded layer is the captured object, the other one is new every step."""
    subject = partly(refused)
    state: State = subject.state
    first, second = built(subject), built(subject)
    assert list(first) == ["compressor", "sliding_window"]
    same = [first[name] is second[name] for name in first]
    assert same == [refused != COMPRESSOR, refused != WINDOW]
    assert dict(state.eager_groups) == {refused: 2}
    assert state.graphs.num_replayed == subject.recorder.num_replays == 2


@pytest.mark.parametrize("refused", [COMPRESSOR, WINDOW])
def test_partial_build_equals_the_serial_one(refused: int) -> None:
    """Only where the map lies differs, and only that is let pass."""
    subject = partly(refused)
    check_step(subject, BATCH)
    check_step(subject, EagerBatch(BATCH))
    assert OWN_MAP in subject.branch_maps


def test_eager_group_after_a_recorded_one_builds_an_equal_map() -> None:
    """The serial build shares the compressor's map; here are two, of equal values."""
    subject = partly(WINDOW)
    metadata = built(subject)
    own = metadata["sliding_window"].token_to_req_indices
    assert own.data_ptr() == subject.memory[OWN_MAP].data_ptr()
    assert torch.equal(own, metadata["compressor"].token_to_req_indices)


def test_a_wrong_own_map_is_found() -> None:
    """Exempt is where the map lies, not what it holds."""
    subject = partly(WINDOW)
    state: State = subject.state
    window = state.sliding_window
    sound = window.build

    def build(*step: Any) -> Any:
        metadata = sound(*step)
        window.token_to_req_indices[0] += 1
        return metadata

    window.build = build
    with pytest.raises(ParityError, match=r"sliding_window.token_to_req_indices\["):
        check_step(subject, BATCH)


def test_refused_groups_are_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Index and layers, when the state records."""
    partly(WINDOW)
    (record,) = [it for it in caplog.records if "built eagerly" in it.message]
    assert "KV-cache group 1 (sliding_window)" in record.message


def test_nothing_is_recorded_if_every_group_is_refused() -> None:
    """Steps build eagerly and are counted as refused: no recording is missing."""
    subject = partly(COMPRESSOR, WINDOW)
    state: State = subject.state
    assert list(built(subject)) == ["compressor", "sliding_window"]
    assert not state.graphs.recordings
    assert dict(state.graphs.eager_steps) == {EagerReason.CAPTURE_REFUSED: 1}
    assert not state.eager_groups


def test_released_state_builds_all_groups_eagerly() -> None:
    """No group is built twice."""
    subject = partly(WINDOW)
    state: State = subject.state
    state.graphs.release()
    assert list(built(subject)) == ["compressor", "sliding_window"]
    assert not state.eager_groups


def groups(*layers: str) -> AttnGroups:
    """KV-cache groups of one layer each; none where the name is empty."""
    named = [[SimpleNamespace(layer_names=[name])] if name else [] for name in layers]
    return cast("AttnGroups", named)


def split(attn_groups: AttnGroups, recordable: dict[int, bool]) -> GroupSplit:
    """Split groups with a block table each."""
    tables = [torch.zeros(1) for _ in attn_groups]
    return split_groups(attn_groups, recordable, tables)


def test_groups_without_layers_need_no_judgement() -> None:
    """They are neither recorded nor built."""
    result = split(groups("a", "", "b"), {0: True, 2: False})
    assert [bool(part) for part in result.recorded] == [True, False, False]
    assert result.refused == (2,)
    assert result.layer_order == ("a", "b")


def test_group_left_unjudged_is_an_error() -> None:
    """It is named with what was judged."""
    with pytest.raises(ValueError, match=r"nothing of KV-cache groups \[1\].*\[0\]"):
        split(groups("a", "b"), {0: True})


def test_groups_over_one_block_table_stay_together() -> None:
    """A builder may clamp the table in place, so their order must be the serial one."""
    shared, own = torch.zeros(1), torch.zeros(1)
    recordable = {0: True, 1: True, 2: False}
    result = split_groups(groups("a", "b", "c"), recordable, [shared, own, shared])
    assert result.refused == (0, 2)
