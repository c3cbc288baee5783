"""Model state class -> the seam that fits it, or why it is left alone.

What fits is found by comparing functions: a subclass whose ``prepare_attn`` is its
own does not inherit the seam of its base, whatever it is called.
"""

import sys
from typing import Any, NamedTuple

from graphparity.fastpath.seams import BUILD_ATTN_METADATA, Seam, whole_prepare_attn

_DEEPSEEK_V41 = "vllm.models.deepseek_v41.nvidia.model_state"


class SeamAnswer(NamedTuple):
    """What the table says of a class."""

    seam: Seam | None
    why_not: str = ""
    """Why there is no seam."""


def seam_of(state_cls: type[Any]) -> SeamAnswer:
    """The seam of a vLLM model state class."""
    from vllm.v1.worker.gpu.model_states.default import (  # noqa: PLC0415
        DefaultModelState,
    )

    prepare_attn = state_cls.prepare_attn
    if prepare_attn is DefaultModelState.prepare_attn:
        return SeamAnswer(whole_prepare_attn(DefaultModelState))
    deepseek_v41 = _deepseek_v41_model_state()
    if deepseek_v41 is None or prepare_attn is not deepseek_v41.prepare_attn:
        unknown = (
            f"nobody has shown which part of {_name(prepare_attn)} may be recorded"
        )
        return SeamAnswer(None, unknown)
    build: Any = state_cls._build_attn_metadata
    if build is not deepseek_v41._build_attn_metadata:
        records = f"it already records: {_name(build)} replaces the eager build"
        return SeamAnswer(None, records)
    return SeamAnswer(BUILD_ATTN_METADATA)


def _deepseek_v41_model_state() -> Any:
    """The DeepSeek-V4.1 state of vLLM, if a model of this process has imported it."""
    module = sys.modules.get(_DEEPSEEK_V41)
    return getattr(module, "DeepseekV41ModelState", None)


def _name(function: Any) -> str:
    return f"{function.__module__}.{function.__qualname__}"
