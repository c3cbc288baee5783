"""Branches' own maps are let pass in mode verify, and nothing else of a fork is."""

from dataclasses import dataclass

import torch

from graphparity.fastpath.proving.group_memory import image_of
from graphparity.fastpath.proving.replays import BuildResult, result_of
from graphparity.fastpath.vllm_plugin.own_maps import as_serial
from graphparity.fastpath.vllm_plugin.verify import differences

MEMORY = {
    "builders.first.map": torch.zeros(4, dtype=torch.int32),
    "builders.second.map": torch.zeros(4, dtype=torch.int32),
    "inputs.map": torch.zeros(4, dtype=torch.int32),
}
FIRST, SECOND, INPUT = MEMORY
POISON = 6
SERIAL = {FIRST: [0, 0, 1, 1]}


@dataclass
class Metadata:
    """One layer's metadata."""

    token_to_req_indices: torch.Tensor


def _built(
    written: dict[str, list[int]], read: dict[str, str], shift: int = 0
) -> BuildResult:
    """A build that writes some buffers, from poison; layers read one each."""
    for tensor in MEMORY.values():
        tensor.fill_(POISON)
    for path, values in written.items():
        MEMORY[path].copy_(torch.tensor(values))
    metadata = {
        layer: Metadata(MEMORY[path][shift : 3 + shift]) for layer, path in read.items()
    }
    return result_of(MEMORY, metadata)


def _found(replayed: BuildResult, serial: BuildResult) -> list[str]:
    """The differences, once own maps are where the serial build has its one."""
    _built({}, {})
    forked = as_serial(replayed, serial, image_of(MEMORY), MEMORY)
    return list(differences(forked, serial, serial, MEMORY))


def test_an_own_map_of_equal_values_is_no_difference() -> None:
    """In a buffer that the serial build leaves alone."""
    serial = _built(SERIAL, {"first": FIRST, "second": FIRST})
    written = {**SERIAL, SECOND: [0, 0, 1, 1]}
    forked = _built(written, {"first": FIRST, "second": SECOND})
    assert list(differences(forked, serial, serial, MEMORY)) != []
    assert _found(forked, serial) == []


def test_a_wrong_own_map_is_a_difference() -> None:
    """By the field that reads it."""
    serial = _built(SERIAL, {"first": FIRST, "second": FIRST})
    written = {**SERIAL, SECOND: [0, 1, 1, 1]}
    forked = _built(written, {"first": FIRST, "second": SECOND})
    assert _found(forked, serial) == [
        "second.token_to_req_indices[(1,)]: [1], but should be [0]"
    ]


def test_a_buffer_that_no_field_reads_is_a_difference() -> None:
    """A branch wrote more than its own map."""
    serial = _built(SERIAL, {"first": FIRST})
    forked = _built({**SERIAL, SECOND: [0, 0, 1, 1]}, {"first": FIRST})
    (difference,) = _found(forked, serial)
    assert difference.startswith(SECOND)


def test_the_serial_build_s_map_must_be_filled() -> None:
    """A forward graph reads it."""
    serial = _built(SERIAL, {"first": FIRST})
    forked = _built({SECOND: [0, 0, 1, 1]}, {"first": SECOND})
    (difference,) = _found(forked, serial)
    assert difference.startswith(FIRST)


def test_buffers_that_serial_builds_write_are_nobody_s_own() -> None:
    """Nor are the runner's, nor is another part of the same buffer."""
    serial = _built({**SERIAL, SECOND: [0, 0, 1, 1]}, {"first": FIRST})
    forked = _built({**SERIAL, SECOND: [0, 0, 1, 1]}, {"first": SECOND})
    assert _found(forked, serial)
    serial = _built(SERIAL, {"first": FIRST})
    forked = _built({**SERIAL, INPUT: [0, 0, 1, 1]}, {"first": INPUT})
    assert len(_found(forked, serial)) == 2
