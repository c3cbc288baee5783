"""Faults planted in forked builds of vLLM's own builders are caught.

Collected only for subjects of vLLM, whose process has it set up; each fault is run on
those among them whose builders it concerns.
"""

# ruff: noqa: PLC0415, vLLM is imported once the subjects have set it up
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch

from graphparity.conformance.checks import check_step
from graphparity.conformance.comparer import ParityError
from graphparity.conformance.decode_batches import DecodeBatch
from graphparity.conformance.memory import image_of, restore
from graphparity.conformance.pytest_plugin import subject_names
from graphparity.conformance.recorded_anew import forked
from graphparity.conformance.subjects.registry import load_subject
from graphparity.conformance.subjects.subject import Subject
from graphparity.fastpath.graph_key import GraphKey
from graphparity.fastpath.vllm_plugin.tied_groups import tied_groups

pytestmark = pytest.mark.emulated_recorder_only

State = Any
"""A specialized state, its private parts included."""

SUBJECTS = {
    "mapping": ("deepseek-v41-blackwell:1", "deepseek-v41-hopper:1"),
    "deriving": ("mamba-hybrid-mamba2:1",),
    "untied": ("default-flash-attn-two-groups:1",),
}
"""Subjects by what their groups do: need a map, derive metadata, have no tie."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The subjects asked for."""
    for fixture in SUBJECTS.keys() & metafunc.fixturenames:
        asked = subject_names(metafunc.config)
        names = [name for name in SUBJECTS[fixture] if name in asked]
        metafunc.parametrize(fixture, names, indirect=True)


@pytest.fixture
def mapping(request: pytest.FixtureRequest) -> Iterator[Subject]:
    """The subject; its memory is put back, of which its own state knows."""
    subject = load_subject(request.param, request.config.getoption("--recorder"))
    image = image_of(subject.memory)
    yield subject
    restore(subject.memory, image)


deriving = untied = mapping


def test_another_branch_s_map_is_caught(mapping: Subject) -> None:
    """Every branch after the first takes the first one's map, which a replay may not
    have built yet.
    """
    from vllm.v1.attention.backend import CommonAttentionMetadata

    sound = CommonAttentionMetadata.token_to_req_indices
    first: list[torch.Tensor] = []  # the buffer of the first branch

    def shared(self: Any, buffer: torch.Tensor) -> torch.Tensor:
        first.append(buffer)
        if buffer is first[0]:
            own: torch.Tensor = sound(self, buffer)
            return own
        return first[0][: self.num_actual_tokens]

    key = _largest(mapping)
    check_step(forked(mapping, (key,)), _batch(key))
    with mock.patch.object(CommonAttentionMetadata, "token_to_req_indices", shared):
        faulty = forked(mapping, (key,))
    with pytest.raises(ParityError, match=r"sliding_window\.decode_swa|sparse_mla\."):
        check_step(faulty, _batch(key))


def test_derived_metadata_is_derived_in_a_branch(deriving: Subject) -> None:
    """Its group shares a branch with the one it is derived from; on another one it
    would be built, which vLLM's serial build never does; Mamba2's leave the same.
    """
    key = _largest(deriving)
    builder: Any = deriving.attn_groups[2][0].get_metadata_builder()
    sound_build, calls = builder.build, []

    def build(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return sound_build(*args, **kwargs)

    with mock.patch.object(builder, "build", build):
        sound = forked(deriving, (key,))
        assert not calls
        forked(deriving, (key,), tied_groups=lambda state, groups: ())
        assert calls
    state: State = sound.state
    assert state.fork_decision.branches == ((0,), (1, 2))
    check_step(sound, _batch(key))


def test_groups_whose_builders_write_one_buffer_are_tied(untied: Subject) -> None:
    """One that was seen to be written; where nothing was seen, any may be."""
    device = untied.input_buffers.positions.device
    assert not tied_groups(untied.attn_groups, device)
    builders: list[Any] = [it[0].get_metadata_builder() for it in untied.attn_groups]
    shared = torch.zeros(4, device=device)
    path = f"builders.{untied.attn_groups[1][0].layer_names[0]}.scratch"
    try:
        for builder in builders:
            builder.scratch = shared
        assert tied_groups(untied.attn_groups, device) == [(0, 1)]
        written = frozenset({path})
        assert tied_groups(untied.attn_groups, device, written) == [(0, 1)]
        written = frozenset({"builders.another"})
        assert not tied_groups(untied.attn_groups, device, written)
    finally:
        for builder in builders:
            del builder.scratch


def _largest(subject: Subject) -> GraphKey:
    """All rows, so that a poisoned map leads to one of them."""
    return max(subject.graph_keys)


def _batch(key: GraphKey) -> DecodeBatch:
    """Unequal rows, in another order than the state's."""
    rows = range(key.num_reqs)
    return DecodeBatch(key, tuple(5 + 40 * row for row in rows), tuple(rows)[::-1], 1)
