"""What an engine must be for its metadata builds to be recorded.

Each need is in words, with its check and the reason why a graph key is not enough
without it. The words are the message of an engine that lacks it and the row of the
documentation. An engine with unmet needs serves as without the plug-in.
"""

import os
from collections.abc import Callable
from typing import Any, NamedTuple

from graphparity.fastpath.vllm_plugin.vllm_version import (
    SUPPORTED_VLLM,
    is_supported,
    vllm_version,
)

FULL_DECODE_MODES = ("FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")
DRAFT_METHODS = ("eagle", "eagle3", "mtp")


class EngineNeed(NamedTuple):
    """One need of the plug-in."""

    words: str
    holds: Callable[[Any], bool]
    """Whether an engine of this ``VllmConfig`` meets it."""
    why: str
    found: Callable[[], str] = str
    """What was found instead; "" where the words say it all."""


def unmet_needs(vllm_config: Any) -> tuple[EngineNeed, ...]:
    """All needs that an engine of this configuration does not meet."""
    return tuple(need for need in NEEDS if not need.holds(vllm_config))


def unmet_words(vllm_config: Any) -> list[str]:
    """The unmet needs in words, with what was found instead."""
    return [
        f"{need.words} (found {found})" if (found := need.found()) else need.words
        for need in unmet_needs(vllm_config)
    ]


def needs_table() -> str:
    """The needs as a Markdown table, for the documentation."""
    rows = [f"| {need.words} | {need.why} |" for need in NEEDS]
    return "\n".join(["| needed | why |", "|---|---|", *rows])


def _has_full_decode_graphs(vllm_config: Any) -> bool:
    mode = vllm_config.compilation_config.cudagraph_mode
    return getattr(mode, "name", None) in FULL_DECODE_MODES


def _has_known_drafts(vllm_config: Any) -> bool:
    """Whether what vLLM's ``init_speculator`` makes was run: nothing, n-gram's, or on
    one data-parallel rank EAGLE's or MTP's.
    """
    speculative = vllm_config.speculative_config
    if speculative is None or speculative.use_ngram():
        return True
    if speculative.use_gemma4_mtp() or speculative.use_multi_module_mtp():
        return False
    is_one_rank = vllm_config.parallel_config.data_parallel_size == 1
    return is_one_rank and speculative.method in DRAFT_METHODS


def _has_fixed_speculation(vllm_config: Any) -> bool:
    speculative = vllm_config.speculative_config
    return speculative is None or not speculative.uses_dynamic_speculative_decoding()


def _has_fixed_verification(vllm_config: Any) -> bool:
    speculative = vllm_config.speculative_config
    return speculative is None or not speculative.enable_adaptive_verification


def _has_no_hisparse(vllm_config: Any) -> bool:
    transfer = vllm_config.kv_transfer_config
    return transfer is None or not transfer.has_connector("HiSparseConnector")


def _has_batch_variance(vllm_config: Any) -> bool:
    return os.environ.get("VLLM_BATCH_INVARIANT", "0").strip() in {"", "0"}


NEEDS = (
    EngineNeed(
        f"vLLM {SUPPORTED_VLLM}.x",
        lambda config: is_supported(vllm_version()),
        "the seams are functions of that release",
        lambda: vllm_version() or "none installed",
    ),
    EngineNeed(
        "Model Runner V2 (VLLM_USE_V2_MODEL_RUNNER=1)",
        lambda config: bool(config.use_v2_model_runner),
        "the older runner has no model states",
    ),
    EngineNeed(
        f"cudagraph_mode {' or '.join(FULL_DECODE_MODES)}",
        _has_full_decode_graphs,
        "only there do FULL steps have uniform query lengths",
    ),
    EngineNeed(
        "no decode context parallelism",
        lambda config: config.parallel_config.decode_context_parallel_size == 1,
        "local sequence lengths are host values of the step",
    ),
    EngineNeed(
        "no prefill context parallelism",
        lambda config: config.parallel_config.prefill_context_parallel_size == 1,
        "its batches bring buffers of their own",
    ),
    EngineNeed(
        "pipeline_parallel_size 1",
        lambda config: config.parallel_config.pipeline_parallel_size == 1,
        "its ranks take their batches from each other, which was not run",
    ),
    EngineNeed(
        "no micro-batching (enable_dbo, ubatch_size)",
        lambda config: not config.parallel_config.use_ubatching,
        "micro-batches bring buffers and builders of their own",
    ),
    EngineNeed(
        "no elastic expert parallelism",
        lambda config: not config.parallel_config.enable_elastic_ep,
        "it drops graphs without telling the model state",
    ),
    EngineNeed(
        "no speculation but n-gram, and with data_parallel_size 1 EAGLE, EAGLE-3, and "
        "MTP of one module (not Gemma 4's)",
        _has_known_drafts,
        "what other drafts read of the target's metadata was not compared",
    ),
    EngineNeed(
        "no dynamic speculation",
        _has_fixed_speculation,
        "the keys of several query lengths are not covered yet",
    ),
    EngineNeed(
        "no adaptive verification",
        _has_fixed_verification,
        "its FULL steps differ in query lengths, which no key fixes",
    ),
    EngineNeed(
        "no HiSparse connector",
        _has_no_hisparse,
        "its groups are prepared from the metadata of a step, which was not run",
    ),
    EngineNeed(
        "no sleep mode",
        lambda config: not config.model_config.enable_sleep_mode,
        "waking up may map other memory under a resident graph",
    ),
    EngineNeed(
        "no fast prefill over shared key-value layers",
        lambda config: not config.cache_config.kv_sharing_fast_prefill,
        "its metadata carries logits indices of the step",
    ),
    EngineNeed(
        "no reference sliding window (R-SWA)",
        lambda config: config.model_config.rswa_window is None,
        "it gathers prompt lengths into a new tensor every step",
    ),
    EngineNeed(
        "no multimodal prefix ranges",
        lambda config: not config.model_config.is_mm_prefix_lm,
        "the ranges are host values of the requests",
    ),
    EngineNeed(
        "no batch invariance (VLLM_BATCH_INVARIANT unset)",
        _has_batch_variance,
        "it changes the builders' choices and was not compared",
    ),
)
