"""Seams: what of a state's ``prepare_attn`` a recording holds.

A state prepares a step's attention by work that must run every step (uploads,
gathers through new tensors) and by the metadata build, whose host values a graph key
fixes. A seam names the method that is the build, or the call that becomes one. It is
found out by comparing functions, never by a class name: a subclass that overrides
``prepare_attn`` does not inherit the seam of its base.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple


class Need(NamedTuple):
    """What a state must be for a graph key to fix its build."""

    words: str
    holds: Callable[[Any], bool]


@dataclass(frozen=True)
class Seam:
    """The method of a state that is recorded, and what it takes for granted."""

    build_method: str
    """Recorded and replayed; what calls it runs every step."""
    prepare_attn: object | None = None
    """The only ``prepare_attn`` that the seam fits; None fits any that calls
    ``build_method``."""
    needs: tuple[Need, ...] = ()
    """What a state must be besides."""
    inner_call: str = ""
    """The function whose call within ``prepare_attn`` is the build. The subclass makes
    ``build_method`` of it; empty where the base has that method."""

    idle_staging: object | None = None
    """The ``prepare_attn`` that, in a decode step over known-zero replay starts, does
    nothing but call the build: such steps skip it. None skips none."""

    @property
    def required_names(self) -> tuple[str, ...]:
        """What a base must offer, in the order in which a step and a capture use it."""
        build = () if self.inner_call else (self.build_method,)
        return tuple(dict.fromkeys(("prepare_attn", *build, *_LIFECYCLE)))


_LIFECYCLE = ("capture_inner_cudagraphs", "initialize_kv_cache", "max_model_len")

BUILD_ATTN_METADATA = Seam("_build_attn_metadata")
"""States that build in a method of its own: what calls it runs every step."""


def replay_start_staging(owner: type[Any]) -> Seam:
    """The seam of states whose ``prepare_attn`` is ``owner``'s, stages replay starts,
    and builds in a method of its own.

    For vLLM's ``DeepseekV41ModelState`` (``models/deepseek_v41/nvidia/
    model_state.py``): replay starts are uploaded and slots padded around the build,
    which is nothing in a decode step over known zeros.
    """
    return Seam(
        "_build_attn_metadata",
        owner.prepare_attn,
        (_NO_CONTEXT_PARALLELISM,),
        idle_staging=owner.prepare_attn,
    )


def whole_prepare_attn(owner: type[Any]) -> Seam:
    """The seam of states whose ``prepare_attn`` is ``owner``'s and is all build.

    For vLLM's ``DefaultModelState`` (``v1/worker/gpu/model_states/default.py``), and
    for those of its subclasses that override nothing of it.
    """
    return Seam("prepare_attn", owner.prepare_attn, _DEFAULT_NEEDS)


def hybrid_prepare_attn(owner: type[Any]) -> Seam:
    """The seam of states whose ``prepare_attn`` is ``owner``'s and builds by a call of
    ``build_attn_metadata``.

    For vLLM's ``MambaHybridModelState`` (``v1/worker/gpu/model_states/
    mamba_hybrid.py``): the gather of accepted-token counts before the call, and
    ``recoverssm.record_step`` after it, run every step.
    """
    return Seam(
        "_build_from_call",
        owner.prepare_attn,
        _HYBRID_NEEDS,
        inner_call="build_attn_metadata",
    )


def require_seam(base: type[Any], seam: Seam) -> None:
    """Raise ``TypeError`` naming all that ``base`` lacks of the seam."""
    missing = [name for name in seam.required_names if not hasattr(base, name)]
    if missing:
        raise TypeError(
            f"{base.__qualname__} lacks {', '.join(missing)}: only a model state that "
            f"builds its metadata in {seam.build_method} can be specialized by this "
            "seam."
        )
    fitting: Any = seam.prepare_attn
    if fitting is not None and base.prepare_attn is not fitting:
        raise TypeError(
            f"{base.__qualname__} lacks {fitting.__qualname__}: its prepare_attn is "
            f"{base.prepare_attn.__qualname__}, of which nobody showed that all of it "
            "may be recorded; name the seam that fits it."
        )
    if seam.inner_call and not _calls(base.prepare_attn, seam.inner_call):
        raise TypeError(
            f"{base.__qualname__} lacks a call of {seam.inner_call}: "
            f"{base.prepare_attn.__qualname__} calls no function of that name, which "
            "this seam takes for the build."
        )


def require_needs(state: Any, seam: Seam) -> None:
    """Raise ``ValueError`` naming every need that ``state`` leaves unmet."""
    unmet = [need.words for need in seam.needs if not need.holds(state)]
    if unmet:
        raise ValueError(
            f"{type(state).__qualname__} cannot record {seam.build_method}, which "
            f"needs {'; '.join(unmet)}: a graph key does not fix what differs there."
        )


def _calls(function: Any, name: str) -> bool:
    """Whether a function's own code looks a function of that name up in its module."""
    code = getattr(function, "__code__", None)
    return code is not None and name in code.co_names and name in function.__globals__


def _has_no_prefix_ranges(state: Any) -> bool:
    return not (state.supports_mm_inputs and state.model_config.is_mm_prefix_lm)


def _has_no_rswa(state: Any) -> bool:
    return state.model_config.rswa_window is None


def _has_no_context_parallelism(state: Any) -> bool:
    parallel = state.vllm_config.parallel_config
    sizes = (
        parallel.prefill_context_parallel_size,
        parallel.decode_context_parallel_size,
    )
    return sizes == (1, 1)


_NO_CONTEXT_PARALLELISM = Need("no context parallelism", _has_no_context_parallelism)
_HYBRID_NEEDS = (
    Need("no reference sliding window (R-SWA)", _has_no_rswa),
    _NO_CONTEXT_PARALLELISM,
)
_DEFAULT_NEEDS = (
    Need("no multimodal prefix ranges", _has_no_prefix_ranges),
    *_HYBRID_NEEDS,
)
