"""A draft model's own builds: which are recorded, replayed, refused, put back."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from graphparity.fastpath.graph_key import GraphKey
from graphparity.fastpath.metadata_graphs import EagerReason
from graphparity.fastpath.proving.verdict import Level, Verdict
from graphparity.fastpath.recorders import EmulatedRecorder
from graphparity.fastpath.vllm_plugin import draft_builds
from graphparity.fastpath.vllm_plugin.draft_builds import DraftBuilds
from graphparity.fastpath.vllm_plugin.draft_decodes import (
    BUILD,
    DraftDecodes,
    drafts_in_steps,
    why_no_builds,
)
from graphparity.fastpath.vllm_plugin.rank_agreement import VerifyError
from graphparity.fastpath.vllm_plugin.verify_drafts import VerifiedDraftBuilds
from graphparity.reference.block_table import BlockTables
from graphparity.reference.input_batch import InputBuffers

CPU = torch.device("cpu:0")
MAX_NUM_REQS, MAX_MODEL_LEN = 4, 64
KEY = GraphKey(2, 4, 2, 4)


class CUDAGraphMode(Enum):
    """As vLLM's."""

    NONE = 0
    FULL = 2


@dataclass(frozen=True)
class Descriptor:
    """As vLLM's ``BatchExecutionDescriptor``."""

    cg_mode: CUDAGraphMode
    num_tokens: int
    num_reqs: int | None
    uniform_token_count: int | None = None


@dataclass
class Metadata:
    """What a draft's attention reads."""

    seq_lens: torch.Tensor
    slot_mapping: torch.Tensor
    max_seq_len: int


class Builder:
    """Copies sequence lengths and slots into buffers of its own."""

    kv_cache_spec = None

    def __init__(self) -> None:
        self.seq_lens = torch.zeros(MAX_NUM_REQS, dtype=torch.int32)
        self.slot_mapping = torch.zeros(MAX_NUM_REQS, dtype=torch.int64)

    def build(self, seq_lens: Any, slots: Any, max_seq_len: int) -> Metadata:
        """Of as many rows as there are."""
        metadata = Metadata(
            self.seq_lens[: len(seq_lens)], self.slot_mapping[: len(slots)], max_seq_len
        )
        metadata.seq_lens.copy_(seq_lens)
        metadata.slot_mapping.copy_(slots)
        return metadata


class Speculator:
    """What a draft's builds take of vLLM's ``TargetDependentARSpeculator``."""

    advance_draft_positions = True
    supports_decode_metadata_update = False
    num_speculative_steps = 3
    max_model_len = MAX_MODEL_LEN
    max_num_reqs = MAX_NUM_REQS
    kv_cache_config = None

    def __init__(self) -> None:
        self.builder = Builder()
        group = SimpleNamespace(
            layer_names=["draft"], get_metadata_builder=lambda: self.builder
        )
        self.attn_groups = [[group]]
        self.input_buffers = InputBuffers(MAX_NUM_REQS, 16, CPU)
        self.block_tables = BlockTables(
            [8], MAX_NUM_REQS, 16, [8], CPU, slot_mapping_enabled=[True]
        )
        self.draft_max_seq_len = MAX_MODEL_LEN
        self.decode_cudagraph_manager = SimpleNamespace(dispatch=self._dispatch)

    def _dispatch(self, num_reqs: int, *step: Any) -> Descriptor:
        return Descriptor(CUDAGraphMode.FULL, 4, 4, 1)

    def propose(self) -> None:
        """Named in the seam."""

    def _multi_step_decode(self) -> None:
        """Named in the seam."""

    def _build_attn_metadata(self) -> None:
        """Named in the seam."""

    def _build_uniform_attn_metadata(
        self, batch_desc: Any, seq_lens_cpu_upper_bound: Any, step: int, **rest: Any
    ) -> dict[str, Any]:
        if not self.attn_groups[0]:
            raise ValueError("no group")
        num_reqs = batch_desc.num_reqs
        built = self.builder.build(
            self.input_buffers.seq_lens[:num_reqs],
            self.block_tables.slot_mappings[0, :num_reqs],
            self.draft_max_seq_len,
        )
        return {"draft": built}


@pytest.fixture(autouse=True)
def _vllm_s_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules of vLLM that are imported when they are needed."""
    package = "vllm.v1.worker.gpu"
    stand_ins: dict[str, dict[str, Any]] = {
        "vllm.config.compilation": {"CUDAGraphMode": CUDAGraphMode},
        f"{package}.cudagraph_utils": {"BatchExecutionDescriptor": Descriptor},
        f"{package}.spec_decode.target_dependent_ar.speculator": {
            "TargetDependentARSpeculator": Speculator
        },
    }
    for name, members in stand_ins.items():
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)


def _recorder(runner: Any) -> EmulatedRecorder:
    builder = runner.attn_groups[0][0].get_metadata_builder()
    memory = [it for it in vars(runner.input_buffers).values() if torch.is_tensor(it)]
    memory += [*vars(builder).values(), runner.block_tables.slot_mappings]
    memory += runner.block_tables.input_block_tables
    return EmulatedRecorder(CPU, memory)


def _builds(
    speculator: Speculator, kind: Callable[..., DraftBuilds] = DraftBuilds
) -> DraftBuilds:
    """Recorded without a judge, which asks for vLLM."""
    runner = SimpleNamespace(model_state=None, req_states=None, device=CPU)
    drafts = kind(DraftDecodes(speculator, runner), _recorder, Level.OFF)
    drafts.record(can_judge=False)
    drafts.written_paths = frozenset(
        f"builders.draft.{name}" for name in vars(speculator.builder)
    )
    return drafts


def _draft_step(speculator: Any, num_reqs: int, descriptor: Descriptor) -> Metadata:
    """As ``_multi_step_decode`` calls for the metadata of a step."""
    speculator.input_buffers.seq_lens.copy_(torch.tensor([9, 7, 0, 0]))
    speculator.block_tables.slot_mappings.copy_(torch.arange(16) + 40)
    speculator.draft_max_seq_len = 12
    built: Metadata = speculator._build_uniform_attn_metadata(
        num_reqs=num_reqs,
        batch_desc=descriptor,
        num_query_per_req=1,
        seq_lens_cpu_upper_bound=torch.tensor([8, 6, 0, 0]),
        step=1,
    )["draft"]
    return built


FULL = Descriptor(CUDAGraphMode.FULL, 4, 4, 1)


def test_a_full_draft_step_is_replayed_from_its_own_buffers() -> None:
    """Every key of its dispatch has a recording, which reads the step's values."""
    speculator = Speculator()
    drafts = _builds(speculator)
    assert sorted(drafts.graphs.recordings) == [(n, 4, n, 4) for n in range(1, 5)]
    built = _draft_step(speculator, 2, FULL)
    assert drafts.graphs.num_replayed == 1
    assert built.seq_lens.tolist() == [9, 7, 0, 0]
    assert built.slot_mapping.tolist() == [40, 41, 42, 43]
    assert built.max_seq_len == MAX_MODEL_LEN
    assert speculator.draft_max_seq_len == 12


def test_other_draft_steps_are_eager_and_counted() -> None:
    """Those without a FULL graph, and those of a key that dispatch did not answer."""
    speculator = Speculator()
    drafts = _builds(speculator)
    built = _draft_step(speculator, 2, replace(FULL, cg_mode=CUDAGraphMode.NONE))
    assert built.max_seq_len == 12
    _draft_step(speculator, 2, Descriptor(CUDAGraphMode.FULL, 3, 3, 1))
    assert drafts.graphs.num_replayed == 0
    assert drafts.graphs.eager_steps == {
        EagerReason.NOT_FULL: 1,
        EagerReason.MISSING_RECORDING: 1,
    }


def test_a_refused_group_leaves_every_draft_step_eager(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is recorded, and the steps are counted under that reason."""
    verdict = Verdict("Builder", recordable=False, level=Level.SAMPLED)
    judged = {0: (SimpleNamespace(outputs={}), verdict)}
    monkeypatch.setattr(draft_builds, "judge_groups", lambda *args: judged)
    speculator = Speculator()
    runner = SimpleNamespace(model_state=None, req_states=None, device=CPU)
    drafts = DraftBuilds(DraftDecodes(speculator, runner), _recorder, Level.SAMPLED)
    drafts.record(can_judge=True)
    assert _draft_step(speculator, 2, FULL).max_seq_len == 12
    assert not drafts.graphs.recordings
    assert drafts.graphs.eager_steps == {EagerReason.CAPTURE_REFUSED: 1}


def test_released_recordings_leave_the_speculator_as_it_was() -> None:
    """Its own method builds, and no recording is alive."""
    speculator = Speculator()
    drafts = _builds(speculator)
    assert BUILD in vars(speculator)
    drafts.release()
    assert BUILD not in vars(speculator)
    assert not drafts.graphs.recordings
    assert _draft_step(speculator, 2, FULL).max_seq_len == 12


def test_staging_puts_back_what_a_build_is_told_by() -> None:
    """Groups and bound, also where the build fails."""
    speculator = Speculator()
    groups = speculator.attn_groups
    decodes = _builds(speculator).decodes
    with pytest.raises(ValueError, match="no group"):
        decodes.build_at(KEY, torch.tensor([5, 6]), [[]])
    assert speculator.attn_groups is groups
    assert speculator.draft_max_seq_len == MAX_MODEL_LEN


def test_verify_compares_and_goes_on_with_the_eager_build() -> None:
    """The step's own bound is below the recording's."""
    speculator = Speculator()
    drafts = _builds(speculator, VerifiedDraftBuilds)
    built = _draft_step(speculator, 2, FULL)
    assert drafts.num_verified == drafts.graphs.num_replayed == 1
    assert built.max_seq_len == 12
    assert built.slot_mapping.tolist() == [40, 41, 42, 43]


def test_verify_names_a_stale_slot_mapping() -> None:
    """Planted: the slots are copied outside of the recording."""
    speculator = Speculator()
    drafts = _builds(speculator, VerifiedDraftBuilds)
    recording = drafts.graphs.recordings[KEY]

    def without_slots() -> None:
        slots = speculator.builder.slot_mapping.clone()
        recording.graph.replay()
        speculator.builder.slot_mapping.copy_(slots)

    drafts.graphs._recordings[KEY] = recording._replace(launch=without_slots)
    with pytest.raises(VerifyError, match=r"draft\.slot_mapping\["):
        _draft_step(speculator, 2, FULL)


def test_verify_names_a_bound_that_is_too_small() -> None:
    """Planted: the recording was made for shorter sequences."""
    speculator = Speculator()
    drafts = _builds(speculator, VerifiedDraftBuilds)
    drafts.graphs.recordings[KEY].attn_metadata["draft"].max_seq_len = 3
    with pytest.raises(VerifyError, match="max_seq_len: 3, but should be 12"):
        _draft_step(speculator, 2, FULL)


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ({}, ""),
        ({"num_speculative_steps": 1}, "it drafts one token"),
        ({"supports_decode_metadata_update": True}, "inside of its own graph"),
        ({"advance_draft_positions": False}, "once for all"),
        ({"_multi_step_decode": lambda self: None}, "has its own _multi_step_decode"),
    ],
)
def test_a_draft_without_builds_to_record_says_why(
    members: dict[str, Any], why: str
) -> None:
    """By what it does, not by its name."""
    speculator = type("Drafter", (Speculator,), members)()
    assert drafts_in_steps(speculator)
    assert (why in why_no_builds(speculator)) if why else not why_no_builds(speculator)


def test_other_speculators_are_no_draft_models() -> None:
    """Nothing, or n-grams."""
    assert not drafts_in_steps(None)
    assert not drafts_in_steps(SimpleNamespace())
