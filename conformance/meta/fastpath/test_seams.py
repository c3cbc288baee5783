"""A seam is found to fit by comparing functions, and names all that a base lacks."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from graphparity.conformance.checks import check_step
from graphparity.conformance.comparer import ParityError
from graphparity.conformance.decode_batches import DecodeBatch, EagerBatch
from graphparity.conformance.node_mutations.removal import unnoticed_nodes
from graphparity.conformance.subjects.recorders import make_recorder
from graphparity.conformance.subjects.subject import (
    MeteredRecorder,
    Subject,
    eager_twin,
)
from graphparity.conformance.subjects.torch_decode import torch_decode
from graphparity.conformance.subjects.torch_model_state import TorchModelState
from graphparity.fastpath.graph_key import GraphKey
from graphparity.fastpath.seams import Need, Seam, require_needs, whole_prepare_attn
from graphparity.fastpath.specialize import Specialization, specialize
from graphparity.reference.compressor import CompressorMetadata

KEY = GraphKey(3, 4, 6, 8)
BATCH = DecodeBatch(KEY, (5, 9, 17), (3, 1, 2), seed=1)
LATER = DecodeBatch(KEY, (6, 8, 33), (0, 1, 2), seed=2)


class ViewsOnly(TorchModelState):
    """Its whole ``prepare_attn`` is the build, which does no device work."""

    def prepare_attn(self, *step: Any, **kwargs: Any) -> dict[str, Any]:
        """Views of the runner's buffers."""
        batch, _, _, slot_mappings = step[:4]
        metadata = CompressorMetadata(
            slot_mapping=slot_mappings[1],
            query_start_loc=batch.query_start_loc,
            token_to_req_indices=self.compressor.token_to_req_indices,
        )
        return {"layer": metadata}


class Overriding(ViewsOnly):
    """Does something else before the build."""

    def prepare_attn(self, *step: Any, **kwargs: Any) -> dict[str, Any]:
        """Not the function that the seam was found to fit."""
        return super().prepare_attn(*step, **kwargs)


def specialization(seam: Seam, made: list[MeteredRecorder]) -> Specialization:
    """Of the torch subject's key, with a recorder kept in ``made``."""
    sound = torch_decode("torch-decode:2", 2, "emulated")

    def recorder_of(state: object) -> MeteredRecorder:
        made.append(make_recorder("emulated", sound.memory))
        return made[-1]

    return Specialization(
        full_mode=sound.cudagraph_modes.FULL,
        make_recorder=recorder_of,
        graph_keys=lambda state: [KEY],
        seam=seam,
    )


@pytest.fixture
def views() -> Subject:
    """``ViewsOnly``, all of whose ``prepare_attn`` is recorded."""
    sound = torch_decode("torch-decode:2", 2, "emulated")
    made: list[MeteredRecorder] = []

    class Adopted(ViewsOnly):
        """Over the buffers of the sound state."""

        def __init__(self) -> None:
            vars(self).update(vars(sound.state))

    seam = Seam("prepare_attn", ViewsOnly.prepare_attn)
    state = specialize(Adopted, specialization(seam, made))()
    state.capture_inner_cudagraphs(
        sound.input_buffers,
        sound.block_tables,
        sound.attn_groups,
        sound.kv_cache_config,
    )
    return replace(
        sound, state=state, eager_state=eager_twin(state, ViewsOnly), recorder=made[0]
    )


def test_build_without_device_work_is_served_without_a_launch(views: Subject) -> None:
    """The return of the captured objects counts as a replay; no node can be removed."""
    check_step(views, BATCH)
    check_step(views, LATER)
    check_step(views, EagerBatch(BATCH))
    assert views.recorder.num_replays == 0
    assert unnoticed_nodes(views, BATCH) == []


def test_eager_build_is_told_from_a_recording_without_nodes(views: Subject) -> None:
    """Equal metadata that was built again is no replay."""
    graphs: Any = vars(views.state)["graphs"]
    graphs.release()
    with pytest.raises(ParityError, match="replays of a recording: 0, but should be 1"):
        check_step(views, BATCH)


def test_another_prepare_attn_is_refused_by_identity() -> None:
    """An override is named, however alike it is."""
    seam = Seam("prepare_attn", ViewsOnly.prepare_attn)
    specialize(ViewsOnly, specialization(seam, []))
    with pytest.raises(TypeError) as caught:
        specialize(Overriding, specialization(seam, []))
    message = str(caught.value)
    assert message.startswith("Overriding lacks ViewsOnly.prepare_attn: ")
    assert "Overriding.prepare_attn" in message


def test_base_without_the_build_method_is_refused() -> None:
    """The missing name and the seam are named."""
    with pytest.raises(TypeError, match=r"^ViewsOnly lacks build_all: .* in build_all"):
        specialize(ViewsOnly, specialization(Seam("build_all"), []))


def test_unmet_needs_are_named_at_once() -> None:
    """One sentence with every need that the state leaves unmet."""
    seam = Seam(
        "prepare_attn",
        needs=(
            Need("blue", lambda state: False),
            Need("round", lambda state: True),
            Need("new", lambda state: False),
        ),
    )
    with pytest.raises(ValueError, match="object cannot record") as caught:
        require_needs(object(), seam)
    assert "needs blue; new: " in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "need"),
    [
        ({"rswa_window": 64}, "no reference sliding window"),
        ({"is_mm_prefix_lm": True}, "no multimodal prefix ranges"),
        ({"decode_context_parallel_size": 2}, "no context parallelism"),
        ({"prefill_context_parallel_size": 2}, "no context parallelism"),
    ],
    ids=str,
)
def test_default_state_s_needs(changes: dict[str, object], need: str) -> None:
    """What the key of a default state does not fix is refused, each by its name."""
    seam = whole_prepare_attn(ViewsOnly)
    require_needs(default_state(), seam)
    with pytest.raises(ValueError, match=need):
        require_needs(default_state(**changes), seam)


def default_state(**changes: object) -> object:
    """What the needs read of a vLLM state."""
    values = {
        "rswa_window": None,
        "is_mm_prefix_lm": False,
        "decode_context_parallel_size": 1,
        "prefill_context_parallel_size": 1,
    } | cast("dict[str, None]", changes)
    config = SimpleNamespace(**values)
    return SimpleNamespace(
        supports_mm_inputs=True,
        model_config=config,
        vllm_config=SimpleNamespace(parallel_config=config),
    )
