"""The plug-in's seam table over vLLM's real model states.

Collected only for subjects of vLLM, whose process has it set up.
"""

import importlib

import pytest

from graphparity.fastpath.specialize import Specialization, specialize
from graphparity.fastpath.vllm_plugin.seam_table import seam_of

pytestmark = pytest.mark.emulated_recorder_only

STATES = "vllm.v1.worker.gpu.model_states"
DEEPSEEK_V41 = "vllm.models.deepseek_v41.nvidia"

RECORDED = {
    f"{STATES}.default.DefaultModelState": "prepare_attn",
    f"{DEEPSEEK_V41}.model_state.DeepseekV41ModelState": "_build_attn_metadata",
    f"{STATES}.mamba_hybrid.MambaHybridModelState": "_build_from_call",
}
LEFT_ALONE = {
    f"{STATES}.encoder_only.EncoderOnlyModelState": "EncoderOnlyModelState.prepare",
    f"{STATES}.encoder_decoder.EncoderDecoderModelState": "prepare_attn",
    f"{DEEPSEEK_V41}.specialized_decode.runtime.model_state"
    ".DeepseekV41SpecializedDecodeModelState": "it already records",
}


def _state_cls(name: str) -> type:
    module, _, qualname = name.rpartition(".")
    cls: type = getattr(importlib.import_module(module), qualname)
    return cls


@pytest.mark.parametrize("name", RECORDED)
def test_a_supported_state_has_its_seam(name: str) -> None:
    """And can be specialized by it."""
    state_cls = _state_cls(name)
    answer = seam_of(state_cls)
    assert answer.seam is not None
    assert answer.seam.build_method == RECORDED[name]
    assert issubclass(_specialized(name), state_cls)


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_any_other_state_is_left_alone_with_a_reason(name: str) -> None:
    """The reason names the function that is not vLLM's known one."""
    answer = seam_of(_state_cls(name))
    assert answer.seam is None
    assert LEFT_ALONE[name] in answer.why_not


@pytest.mark.parametrize("name", RECORDED)
def test_a_specialized_state_has_no_seam(name: str) -> None:
    """A state that records is not plugged in twice: its ``prepare_attn`` is ours."""
    answer = seam_of(_specialized(name))
    assert answer.seam is None
    assert "nobody has shown which part of graphparity.fastpath." in answer.why_not


def _specialized(name: str) -> type:
    """A supported state, specialized by its seam."""
    state_cls = _state_cls(name)
    seam = seam_of(state_cls).seam
    assert seam is not None
    specialization = Specialization(
        full_mode=None,
        make_recorder=lambda state: state,
        graph_keys=lambda state: (),
        seam=seam,
    )
    return specialize(state_cls, specialization)
