"""The comparison of mode ``verify`` lets a host bound grow, and nothing else."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from graphparity.fastpath.proving.leaves import Leaf
from graphparity.fastpath.proving.replays import BuildResult, result_of
from graphparity.fastpath.vllm_plugin.verify import differences


@dataclass
class Metadata:
    """One layer's metadata."""

    max_seq_len: int
    seq_lens: torch.Tensor
    schedule: torch.Tensor


MEMORY = {
    "builder.seq_lens": torch.zeros(4, dtype=torch.int32),
    "builder.schedule": torch.zeros(4, dtype=torch.int32),
}


def _built(
    max_seq_len: int, seq_lens: list[int], schedule: int, *, shift: int = 0
) -> BuildResult:
    """A build over ``MEMORY``, its metadata ``shift`` elements into the buffer."""
    lens = MEMORY["builder.seq_lens"]
    lens.copy_(torch.tensor(seq_lens))
    MEMORY["builder.schedule"].fill_(schedule)
    size = 3
    metadata = Metadata(
        max_seq_len, lens[shift : shift + size], MEMORY["builder.schedule"]
    )
    return result_of(MEMORY, {"layer": metadata, "layers": {"next": "layer"}})


def _found(
    replayed: BuildResult, eager: BuildResult, as_recorded: BuildResult
) -> list[str]:
    return list(differences(replayed, eager, as_recorded, MEMORY))


def test_a_grown_bound_and_what_follows_it_are_no_difference() -> None:
    """The schedule is what an eager build with the recording's bound gives."""
    replayed = _built(128, [5, 6, 7, 0], schedule=9)
    eager = _built(7, [5, 6, 7, 0], schedule=1)
    assert _found(replayed, eager, _built(128, [5, 6, 7, 0], schedule=9)) == []


CASES: dict[str, tuple[Any, ...]] = {
    "stale values": (
        _built(128, [5, 6, 8, 0], schedule=9),
        ["builder.seq_lens[(2,)]: [8], but should be [7]", "layer.seq_lens[(2,)]"],
    ),
    "a stale tail": (
        _built(128, [5, 6, 7, 3], schedule=9),
        ["builder.seq_lens[(3,)]: [3], but should be [0]"],
    ),
    "a bound that shrank": (
        _built(6, [5, 6, 7, 0], schedule=9),
        ["layer.max_seq_len: 6, but should be 7"],
    ),
    "a schedule of neither": (
        _built(128, [5, 6, 7, 0], schedule=4),
        ["builder.schedule", "layer.schedule"],
    ),
    "another place": (
        _built(128, [0, 5, 6, 7], schedule=9, shift=1),
        ["layer.seq_lens: at Place("],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_anything_else_is_a_difference_by_path(case: str) -> None:
    """Each in the form *path: actual, but should be expected*."""
    replayed, expected = CASES[case]
    eager = _built(7, [5, 6, 7, 0], schedule=1)
    as_recorded = _built(128, [5, 6, 7, 0], schedule=9)
    found = _found(replayed, eager, as_recorded)
    for beginning in expected:
        assert any(it.startswith(beginning) for it in found), found


def test_a_frozen_host_value_without_a_bound_is_a_difference() -> None:
    """Nothing tells the metadata's readers that a bound grew."""
    replayed = _built(7, [5, 6, 7, 0], schedule=9)
    eager = _built(7, [5, 6, 7, 0], schedule=1)
    found = _found(replayed, eager, _built(7, [5, 6, 7, 0], schedule=9))
    assert "builder.schedule: follows a frozen host value, but should follow none" in (
        found
    )
    assert any(it.startswith("layer.schedule: follows") for it in found)


def test_layers_that_share_otherwise_are_a_difference() -> None:
    """Which layers share a metadata object is part of the build."""
    build = _built(7, [5, 6, 7, 0], schedule=1)
    alone = {**build.leaves, "layers.next": Leaf("next")}
    other = BuildResult(build.memory, alone)
    found = _found(build, other, other)
    assert found == ["layers.next: 'layer', but should be 'next'"]
