"""A specialized state replays recorded decode steps and builds all others eagerly."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from graphparity.conformance.decode_batches import (
    DecodeBatch,
    DummyBatch,
    EagerBatch,
    PrefillBatch,
)
from graphparity.conformance.staging import StagedStep, stage
from graphparity.conformance.subjects.subject import Subject
from graphparity.conformance.subjects.torch_decode import torch_decode
from graphparity.conformance.subjects.torch_model_state import TorchModelState
from graphparity.fastpath.graph_key import GraphKey
from graphparity.fastpath.metadata_graphs import EagerReason, MetadataGraphs
from graphparity.fastpath.recorders.protocol import RecordedGraph
from graphparity.fastpath.seams import BUILD_ATTN_METADATA
from graphparity.fastpath.specialize import Specialization, specialize
from graphparity.reference.interface import CUDAGraphMode

KEY = GraphKey(3, 4, 6, 8)
BATCH = DecodeBatch(KEY, (5, 9, 17), (3, 1, 2), seed=1)
SPECIALIZATION = Specialization(
    full_mode=CUDAGraphMode.FULL,
    make_recorder=lambda state: state.recorder,
    graph_keys=lambda state: (),
)


Metadata = Any
"""What a step's ``prepare_attn`` returns: by layer, no type in common."""
State = Any
"""A specialized state, its private parts included."""


def state_of(subject: Subject) -> State:
    """The state under test."""
    return subject.state


class Served:
    """A subject of query length 2, and its state's counters since it was recorded."""

    def __init__(self) -> None:
        self.subject: Subject = torch_decode("torch-decode:2", 2, "emulated")
        self.state = state_of(self.subject)
        self.graphs: MetadataGraphs = self.state.graphs

    def run(self, staged: StagedStep, ubatch_idx: int = 0) -> Metadata:
        """The metadata of one step."""
        return self.state.prepare_attn(
            staged.input_batch,
            staged.cudagraph_mode,
            staged.block_tables,
            staged.slot_mappings,
            self.subject.attn_groups,
            self.subject.kv_cache_config,
            for_capture=staged.for_capture,
            ubatch_idx=ubatch_idx,
        )

    def record(self) -> None:
        """Record every key again."""
        self.state.capture_inner_cudagraphs(
            self.subject.input_buffers,
            self.subject.block_tables,
            self.subject.attn_groups,
            self.subject.kv_cache_config,
        )


class Unspecializable:
    """Neither builds metadata nor captures."""

    def prepare_attn(self) -> None:
        """Prepare nothing."""


def not_full(served: Served) -> Metadata:
    """A decode step that no graph serves."""
    return served.run(stage(served.subject, EagerBatch(BATCH)))


def piecewise(served: Served) -> Metadata:
    """A decode step under piecewise graphs."""
    staged = stage(served.subject, EagerBatch(BATCH))
    return served.run(replace(staged, cudagraph_mode=CUDAGraphMode.PIECEWISE))


def dummy(served: Served) -> Metadata:
    """An idle rank's step of a recorded key."""
    return served.run(stage(served.subject, DummyBatch(KEY)))


def with_batch(served: Served, **changes: object) -> Metadata:
    """A FULL step of a recorded key, its batch changed."""
    staged = stage(served.subject, BATCH)
    batch = replace(staged.input_batch, **changes)
    return served.run(replace(staged, input_batch=batch))


def prefill_rows(served: Served) -> Metadata:
    """A FULL step some rows of which are prefills running as decodes."""
    return with_batch(served, has_prefill=True)


def varlen(served: Served) -> Metadata:
    """A FULL step whose query lengths are only bounded."""
    return with_batch(served, max_query_len=2)


def microbatch(served: Served) -> Metadata:
    """The second microbatch of a step."""
    return served.run(stage(served.subject, BATCH), ubatch_idx=1)


def missing(served: Served) -> Metadata:
    """A step whose recording was released."""
    served.graphs.release()
    return served.run(stage(served.subject, BATCH))


def new_kv_cache(served: Served) -> Metadata:
    """A step after the KV cache was allocated anew."""
    served.state.initialize_kv_cache(
        served.subject.kv_cache_config, served.subject.block_tables
    )
    return served.run(stage(served.subject, BATCH))


EAGER_STEPS = {
    "cudagraph_mode=NONE": (not_full, EagerReason.NOT_FULL),
    "cudagraph_mode=PIECEWISE": (piecewise, EagerReason.NOT_FULL),
    "for_capture=True": (dummy, EagerReason.DUMMY),
    "has_prefill=True": (prefill_rows, EagerReason.PREFILL),
    "max_query_len=2": (varlen, EagerReason.VARLEN),
    "ubatch_idx=1": (microbatch, EagerReason.MICROBATCH),
    "release()": (missing, EagerReason.MISSING_RECORDING),
    "initialize_kv_cache()": (new_kv_cache, EagerReason.MISSING_RECORDING),
}


def test_base_without_the_seam_is_refused_by_every_missing_name() -> None:
    """One sentence names the class and all it lacks."""
    with pytest.raises(TypeError, match="Unspecializable lacks") as caught:
        specialize(Unspecializable, SPECIALIZATION)
    message = str(caught.value)
    for name in (
        "_build_attn_metadata",
        "capture_inner_cudagraphs",
        "initialize_kv_cache",
        "max_model_len",
    ):
        assert name in message
    assert "prepare_attn," not in message


def test_specialized_class_is_a_named_subclass_of_its_base() -> None:
    """What tells states apart by class goes on working."""
    specialized = specialize(TorchModelState, SPECIALIZATION)
    assert issubclass(specialized, TorchModelState)
    assert specialized.__name__ == "SpecializedTorchModelState"
    assert specialized.__module__ == TorchModelState.__module__


def test_recorded_decode_step_returns_the_captured_metadata() -> None:
    """Every key, by one replay each, none of them eagerly."""
    served = Served()
    for key in served.subject.graph_keys:
        rows = range(key.num_reqs)
        batch = DecodeBatch(key, tuple(9 + row for row in rows), tuple(rows))
        actual = served.run(stage(served.subject, batch))
        assert actual is served.graphs.recordings[key].attn_metadata
    num_keys = len(served.subject.graph_keys)
    assert served.graphs.num_replayed == num_keys
    assert served.subject.recorder.num_replays == num_keys
    assert served.graphs.eager_steps.total() == 0


@pytest.mark.parametrize(("step", "reason"), EAGER_STEPS.values(), ids=EAGER_STEPS)
def test_other_step_builds_eagerly_and_is_counted_under_its_reason(
    step: Callable[[Served], Metadata], reason: EagerReason
) -> None:
    """Nothing is replayed, and the metadata is no recording's."""
    served = Served()
    captured = [it.attn_metadata for it in served.graphs.recordings.values()]
    built = step(served)
    assert all(built is not metadata for metadata in captured)
    assert dict(served.graphs.eager_steps) == {reason: 1}
    assert served.graphs.num_replayed == served.subject.recorder.num_replays == 0


def test_eager_step_leaves_recordings_in_service() -> None:
    """A replay follows every kind of eager step that keeps the recordings."""
    served = Served()
    for step, reason in EAGER_STEPS.values():
        if reason is not EagerReason.MISSING_RECORDING:
            step(served)
            replayed = served.run(stage(served.subject, BATCH))
            assert replayed is served.graphs.recordings[KEY].attn_metadata


def broken_upload(state: State) -> None:
    """``prepare_attn`` fails before it reaches the build."""

    def fail(values: npt.NDArray[np.int32], num_reqs: int) -> torch.Tensor:
        raise RuntimeError("planted in prepare_attn")

    state._upload_replay_start = fail


def broken_build(state: State) -> None:
    """The build itself fails."""

    def fail(*args: object) -> None:
        raise RuntimeError("planted in the build")

    state.compressor.build = fail


def broken_second_capture(state: State) -> None:
    """One key is captured, then the recorder fails."""
    recorder = state.graphs.recorder
    sound = recorder.capture

    def capture(build: Callable[[], Metadata]) -> tuple[RecordedGraph, Metadata]:
        if state.graphs.recordings:
            raise RuntimeError("planted in the second capture")
        captured: tuple[RecordedGraph, Metadata] = sound(build)
        return captured

    recorder.capture = capture


@pytest.mark.parametrize("plant", [broken_upload, broken_build, broken_second_capture])
def test_error_while_recording_leaves_the_state_usable(
    plant: Callable[[State], None],
) -> None:
    """The seam is whole again: steps build eagerly, and can be recorded again."""
    served = Served()
    owners = (served.state, served.state.compressor, served.state.graphs.recorder)
    before = [dict(vars(owner)) for owner in owners]
    plant(served.state)
    with pytest.raises(RuntimeError, match="planted in"):
        served.record()
    assert "_build_attn_metadata" not in vars(served.state)
    for owner, attributes in zip(owners, before, strict=True):
        for name in vars(owner).keys() - attributes.keys():
            if name != "_num_zero_replay_starts":
                del vars(owner)[name]
    eager = served.run(stage(served.subject, BATCH))
    assert set(eager) == {"compressor", "sliding_window"}
    assert dict(served.graphs.eager_steps) == {EagerReason.MISSING_RECORDING: 1}
    served.record()
    replayed = served.run(stage(served.subject, BATCH))
    assert replayed is served.graphs.recordings[KEY].attn_metadata


class Uploads:
    """Counts the uploads of the base class."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.num = 0
        base = TorchModelState._upload_replay_start

        def counted(
            state: TorchModelState, values: npt.NDArray[np.int32], num_reqs: int
        ) -> torch.Tensor:
            self.num += 1
            return base(state, values, num_reqs)

        monkeypatch.setattr(TorchModelState, "_upload_replay_start", counted)

    def of(self, served: Served, step: DecodeBatch | PrefillBatch) -> int:
        """Uploads that one step causes."""
        before = self.num
        served.run(stage(served.subject, step))
        return self.num - before


def decode(num_reqs: int) -> DecodeBatch:
    """A decode step of that many requests."""
    padded = {1: 1, 2: 2, 3: 4, 4: 4}[num_reqs]
    key = GraphKey(num_reqs, padded, 2 * num_reqs, 2 * padded)
    return DecodeBatch(key, tuple(range(5, 5 + num_reqs)), tuple(range(num_reqs)))


REPLAYING = PrefillBatch((3, 4), (7, 9), (3, 0), (1, 2))
STARTING = PrefillBatch((3, 4), (7, 9), (0, 0), (1, 2))


def test_known_zeros_are_not_uploaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recording uploaded zeros for the largest key, so no decode step has to."""
    served, uploads = Served(), Uploads(monkeypatch)
    steps: list[DecodeBatch | PrefillBatch] = [
        decode(4),
        decode(1),
        STARTING,
        decode(3),
    ]
    assert [uploads.of(served, step) for step in steps] == [0, 0, 0, 0]
    assert served.state._replay_start.tolist() == [0] * 8


def test_upload_comes_back_after_a_step_that_replays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once for the zeros of the next step, then no more; a non-zero always."""
    served, uploads = Served(), Uploads(monkeypatch)
    steps: list[DecodeBatch | PrefillBatch] = [
        REPLAYING,
        REPLAYING,
        decode(2),
        decode(2),
        decode(1),
        REPLAYING,
    ]
    assert [uploads.of(served, step) for step in steps] == [1, 1, 1, 0, 0, 1]
    assert served.state._replay_start.tolist()[:2] == [3, 0]


def test_larger_batch_uploads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the rows of the last upload are known to be zero."""
    served, uploads = Served(), Uploads(monkeypatch)
    steps: list[DecodeBatch | PrefillBatch] = [
        REPLAYING,
        decode(1),
        decode(3),
        decode(3),
        decode(2),
        decode(4),
    ]
    assert [uploads.of(served, step) for step in steps] == [1, 1, 1, 0, 0, 1]
    assert served.state._replay_start.tolist() == [0] * 8


def test_decode_steps_never_see_another_requests_replay_start() -> None:
    """The buffer's leading rows are zero in every decode step of any history."""
    served = Served()
    for step in (REPLAYING, decode(1), REPLAYING, decode(2), decode(4), decode(3)):
        served.run(stage(served.subject, step))
        if isinstance(step, DecodeBatch):
            leading = served.state._replay_start[: step.key.num_reqs]
            assert leading.tolist() == [0] * step.key.num_reqs


def staged_steps(
    served: Served, monkeypatch: pytest.MonkeyPatch, steps: list[Any]
) -> list[bool]:
    """Of every step, whether the base's ``prepare_attn`` staged it."""
    staged: list[bool] = []
    base = TorchModelState.prepare_attn

    def noted(state: TorchModelState, *args: Any, **kwargs: Any) -> Metadata:
        staged[-1] = True
        return base(state, *args, **kwargs)

    monkeypatch.setattr(TorchModelState, "prepare_attn", noted)
    for step in steps:
        staged.append(False)
        served.run(stage(served.subject, step))
    return staged


def test_a_decode_step_over_known_zeros_is_its_replay_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is staged, until a step that replays a prefix has left a non-zero."""
    served = Served()
    steps = [decode(4), decode(1), STARTING, decode(3), REPLAYING, decode(2), decode(2)]
    staged = staged_steps(served, monkeypatch, steps)
    assert staged == [False, False, True, False, True, True, False]
    assert served.graphs.num_replayed == 5


class StagesMore(TorchModelState):
    """Its ``prepare_attn`` is its own."""

    def prepare_attn(self, *args: Any, **kwargs: Any) -> Metadata:
        """As the base's."""
        return super().prepare_attn(*args, **kwargs)


def test_staging_is_skipped_only_where_it_is_known_to_be_idle() -> None:
    """A base that stages something else in a decode step is not passed by."""
    idle = replace(BUILD_ATTN_METADATA, idle_staging=TorchModelState.prepare_attn)
    for seam, base, skips in (
        (BUILD_ATTN_METADATA, TorchModelState, False),
        (idle, TorchModelState, True),
        (idle, StagesMore, False),
    ):
        state_cls: Any = specialize(base, replace(SPECIALIZATION, seam=seam))
        assert state_cls._may_skip_staging is skips


def test_a_step_that_no_recording_serves_is_staged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And counted once."""
    served = Served()
    served.graphs.release()
    assert staged_steps(served, monkeypatch, [decode(2), DummyBatch(KEY)]) == [True] * 2
    assert served.graphs.eager_steps == {
        EagerReason.MISSING_RECORDING: 1,
        EagerReason.DUMMY: 1,
    }
