"""Model state class -> the seam that fits it, or why it is left alone.

What fits is found by comparing functions: a subclass whose ``prepare_attn`` is its
own does not inherit the seam of its base, whatever it is called.
"""

import sys
from typing import Any, NamedTuple

from graphparity.fastpath.seams import (
    Seam,
    hybrid_prepare_attn,
    replay_start_staging,
    whole_prepare_attn,
)

_DEEPSEEK_V41 = (
    "vllm.models.deepseek_v41.nvidia.model_state",
    "DeepseekV41ModelState",
)
_HYBRID = ("vllm.v1.worker.gpu.model_states.mamba_hybrid", "MambaHybridModelState")


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
    hybrid = _imported(*_HYBRID)
    if hybrid is not None and prepare_attn is hybrid.prepare_attn:
        return SeamAnswer(hybrid_prepare_attn(hybrid))
    deepseek_v41 = _imported(*_DEEPSEEK_V41)
    if deepseek_v41 is None or prepare_attn is not deepseek_v41.prepare_attn:
        unknown = (
            f"nobody has shown which part of {_name(prepare_attn)} may be recorded"
        )
        return SeamAnswer(None, unknown)
    build: Any = state_cls._build_attn_metadata
    if build is not deepseek_v41._build_attn_metadata:
        records = f"it already records: {_name(build)} replaces the eager build"
        return SeamAnswer(None, records)
    return SeamAnswer(replay_start_staging(deepseek_v41))


def _imported(module: str, state_cls: str) -> Any:
    """A state class of vLLM, if a model of this process has imported it."""
    return getattr(sys.modules.get(module), state_cls, None)


def _name(function: Any) -> str:
    return f"{function.__module__}.{function.__qualname__}"
