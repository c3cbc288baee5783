"""The prover accepts sound builds, and says what each metadata field promises."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from graphparity.conformance.builders import wrong_builders as plain
from graphparity.conformance.meta.fastpath.test_prover_refuses import (
    KEYS,
    TWO_TOKENS,
    judged,
)
from graphparity.conformance.subjects.torch_builders import (
    TorchCompressorBuilder,
    TorchSlidingWindowBuilder,
)
from graphparity.fastpath.graph_key import GraphKey
from graphparity.fastpath.prover import judge
from graphparity.fastpath.proving.verdict import FieldClass, Level, Verdict
from graphparity.fastpath.runtime_batch import StepRows
from graphparity.fastpath.step_inputs import StepInputs
from graphparity.reference.padding import Padding

CONSTANTS = ("token_range", "window_range", "no_replay_start")


class WithBuilder(plain.PlainBuild):
    """The build of a builder that owns its buffers and some constants."""

    builder: Any

    @property
    def inputs(self) -> Mapping[str, torch.Tensor]:
        """The runner's buffers and the builder's constants."""
        owned = vars(self.builder)
        return {**super().inputs} | {it: owned[it] for it in CONSTANTS if it in owned}

    @property
    def outputs(self) -> Mapping[str, torch.Tensor]:
        """The builder's other tensors."""
        return {
            name: it
            for name, it in vars(self.builder).items()
            if isinstance(it, torch.Tensor) and name not in CONSTANTS
        }


class Compressor(WithBuilder):
    """Ring slots and the token-to-request map."""

    def __init__(self) -> None:
        super().__init__()
        self.builder = TorchCompressorBuilder(4, plain.MAX_NUM_TOKENS, plain.DEVICE)

    def build(self, step: StepInputs) -> Any:
        """Build for the padded tokens."""
        batch, (table,) = step.input_batch, step.block_tables
        return self.builder.build(batch, batch.num_tokens_after_padding, table)


class Window(WithBuilder):
    """The slots that each token's window reads."""

    def __init__(self) -> None:
        super().__init__()
        self.builder = TorchSlidingWindowBuilder(
            8, plain.BLOCK_SIZE, plain.MAX_NUM_TOKENS, plain.DEVICE
        )

    def build(self, step: StepInputs) -> Any:
        """Build for the padded tokens, with a map of its own."""
        (table,), (slots,) = step.block_tables, step.slot_mappings
        return self.builder.build(step.input_batch, table, slots, None, None)


class NoDeviceWork(plain.PlainBuild):
    """Metadata of the runner's buffers alone."""

    def build(self, step: StepInputs) -> plain.PlainMetadata:
        """Views of the inputs, and a host bound."""
        lens = step.input_batch.seq_lens
        longest = int(step.input_batch.seq_lens_cpu_upper_bound.max())
        return plain.PlainMetadata(lens, lens, lens, step.input_batch.num_reqs, longest)


class ClampedTable(plain.PlainBuild):
    """Clamps its block table in place, as the eager build does."""

    def build(self, step: StepInputs) -> plain.PlainMetadata:
        """Build soundly, and clamp."""
        step.block_tables[0].clamp_(min=0)
        return super().build(step)


@dataclass
class ScheduledMetadata(plain.PlainMetadata):
    """With a schedule planned for the longest sequence."""

    schedule: torch.Tensor | None = None


class Scheduled(plain.PlainBuild):
    """Plans on the device for a host bound that the kernels are told, too."""

    def __init__(self) -> None:
        super().__init__()
        self.schedule = torch.zeros(plain.MAX_NUM_REQS, dtype=torch.int32)

    def build(self, step: StepInputs) -> ScheduledMetadata:
        """Splits of each request, at most those of the longest sequence."""
        built, batch = super().build(step), step.input_batch
        longest = int(batch.seq_lens_cpu_upper_bound.max())
        schedule = self.schedule[: batch.num_reqs_after_padding]
        torch.add(batch.seq_lens, longest, out=schedule)
        return ScheduledMetadata(
            **vars(built) | {"max_seq_len": longest}, schedule=schedule
        )


class StagedUpload(plain.PlainBuild):
    """Copies its own pinned buffer, which the step writes before every build."""

    def __init__(self) -> None:
        super().__init__()
        self.staging = torch.zeros(plain.MAX_NUM_REQS, dtype=torch.int32)
        self.uploaded = torch.zeros(plain.MAX_NUM_REQS, dtype=torch.int32)
        self.pinned_memory = (self.staging,)

    def stage(self, rows: StepRows) -> Callable[[], object]:
        """Stage the lengths as well."""
        self.staging.zero_()
        self.staging[: rows.num_reqs] = torch.tensor(rows.seq_lens)
        return super().stage(rows)

    def build(self, step: StepInputs) -> plain.PlainMetadata:
        """Build soundly, and upload."""
        self.uploaded.copy_(self.staging, non_blocking=True)
        return super().build(step)


@dataclass
class OwnerMetadata(plain.PlainMetadata):
    """With an object that nobody can look into."""

    owner: object = None
    positions: torch.Tensor | None = None


class Opaque(plain.PlainBuild):
    """Returns one object in every build, and positions with stale tails."""

    owner = object()

    def build(self, step: StepInputs) -> OwnerMetadata:
        """Build soundly."""
        built = vars(super().build(step))
        return OwnerMetadata(
            **built, owner=self.owner, positions=step.input_batch.positions
        )


SOUND = (
    plain.PlainBuild,
    Compressor,
    Window,
    NoDeviceWork,
    ClampedTable,
    Scheduled,
    StagedUpload,
    Opaque,
)


def classes(verdict: Verdict) -> dict[str, FieldClass]:
    """The class of every field."""
    return {field.path: field.field_class for field in verdict.fields}


def paddings(verdict: Verdict) -> dict[str, Padding | None]:
    """The padding of every field."""
    return {field.path: field.padding for field in verdict.fields}


@pytest.mark.parametrize("keys", [KEYS, TWO_TOKENS], ids=["1 token", "2 tokens"])
@pytest.mark.parametrize("build_cls", SOUND)
def test_a_sound_build_is_recordable(
    build_cls: type[plain.PlainBuild], keys: tuple[GraphKey, ...]
) -> None:
    """All checks pass, and every field has a reason."""
    verdict = judged(build_cls(), keys)
    assert verdict.refusal is None
    assert verdict.recordable
    assert all(field.reason for field in verdict.fields)
    assert set(verdict.nodes_per_key) <= set(keys)
    assert len(verdict.nodes_per_key) == 3


def test_a_build_without_device_work_has_no_nodes() -> None:
    """Its host bound is a bound all the same."""
    verdict = judged(NoDeviceWork())
    assert set(verdict.nodes_per_key.values()) == {0}
    assert classes(verdict)["max_seq_len"] is FieldClass.BOUND


def test_an_input_changed_as_eager_changes_it_is_named() -> None:
    """Nobody has to declare it."""
    assert judged(ClampedTable()).in_place_inputs == (
        "block_tables.input_block_tables[0]",
    )
    assert judged(plain.PlainBuild()).in_place_inputs == ()


def test_contents_that_follow_a_host_bound_are_recorded_and_said_so() -> None:
    """The worst case serves every step, but may affect numerics."""
    found = classes(judged(Scheduled()))
    assert found.pop("max_seq_len") is FieldClass.BOUND
    assert found.pop("schedule") is FieldClass.BOUND_AFFECTING
    assert set(found.values()) == {FieldClass.EXACT}


def test_an_object_returned_again_is_an_identity() -> None:
    """The capture's object is the eager build's."""
    assert classes(judged(Opaque()))["owner"] is FieldClass.IDENTITY


def test_padding_has_the_class_that_batches_show() -> None:
    """Stale, mapped to request 0, or one value."""
    found = paddings(judged(Opaque()))
    assert found["positions"] is Padding.UNSPECIFIED
    assert found["token_to_req_indices"] is Padding.REQUEST_0
    assert found["token_lens"] is Padding.REQUEST_0
    assert found["seq_lens"] is Padding.SENTINEL
    assert found["num_reqs"] is None
    found = paddings(judged(Window()))
    assert found["is_valid_token"] is Padding.SENTINEL
    assert found["decode_swa_lens"] is Padding.SENTINEL
    assert paddings(judged(Compressor()))["slot_mapping"] is Padding.UNSPECIFIED


def test_levels_choose_the_keys() -> None:
    """Off judges nothing, sampled three keys, all of them all."""

    def at(level: Level) -> Verdict:
        return judge(
            plain.PlainBuild(),
            KEYS,
            plain.emulated_recorder,
            max_model_len=plain.MAX_MODEL_LEN,
            max_num_reqs=plain.MAX_NUM_REQS,
            level=level,
        )

    off = at(Level.OFF)
    assert (off.recordable, off.is_judged, off.checks_passed) == (True, False, ())
    assert len(at(Level.SAMPLED).nodes_per_key) == 3
    assert set(at(Level.ALL).nodes_per_key) == set(KEYS)
