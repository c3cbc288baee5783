"""Every need of the table can be unmet, and all unmet ones are told at once."""

import importlib.metadata
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from graphparity.fastpath.vllm_plugin.eligibility import (
    DRAFT_METHODS,
    NEEDS,
    needs_table,
    unmet_needs,
    unmet_words,
)
from graphparity.fastpath.vllm_plugin.report import unmet_message

Change = Callable[[Any], None]


def _speculation(**changes: Any) -> SimpleNamespace:
    speculative = SimpleNamespace(
        method="ngram",
        use_ngram=lambda: True,
        use_gemma4_mtp=lambda: False,
        use_multi_module_mtp=lambda: False,
        uses_dynamic_speculative_decoding=lambda: False,
        enable_adaptive_verification=False,
    )
    vars(speculative).update(changes)
    return speculative


def _draft_model(method: str, **changes: Any) -> SimpleNamespace:
    return _speculation(method=method, use_ngram=lambda: False, **changes)


@pytest.fixture
def vllm_config(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """An engine that meets every need."""
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.33.0+cpu")
    monkeypatch.delenv("VLLM_BATCH_INVARIANT", raising=False)
    return SimpleNamespace(
        use_v2_model_runner=True,
        compilation_config=SimpleNamespace(
            cudagraph_mode=SimpleNamespace(name="FULL_AND_PIECEWISE")
        ),
        parallel_config=SimpleNamespace(
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
            data_parallel_size=1,
            pipeline_parallel_size=1,
            use_ubatching=False,
            enable_elastic_ep=False,
        ),
        speculative_config=None,
        kv_transfer_config=None,
        model_config=SimpleNamespace(
            enable_sleep_mode=False, rswa_window=None, is_mm_prefix_lm=False
        ),
        cache_config=SimpleNamespace(kv_sharing_fast_prefill=False),
    )


def _set(path: str, value: Any) -> Change:
    *owners, name = path.split(".")

    def change(config: Any) -> None:
        for owner in owners:
            config = getattr(config, owner)
        setattr(config, name, value)

    return change


CHANGES = {
    "Model Runner V2": _set("use_v2_model_runner", False),
    "cudagraph_mode": _set(
        "compilation_config.cudagraph_mode", SimpleNamespace(name="PIECEWISE")
    ),
    "decode context": _set("parallel_config.decode_context_parallel_size", 2),
    "prefill context": _set("parallel_config.prefill_context_parallel_size", 2),
    "pipeline_parallel_size 1": _set("parallel_config.pipeline_parallel_size", 2),
    "micro-batching": _set("parallel_config.use_ubatching", True),
    "elastic": _set("parallel_config.enable_elastic_ep", True),
    "no speculation but": _set("speculative_config", _draft_model("dflash")),
    "dynamic speculation": _set(
        "speculative_config",
        _speculation(uses_dynamic_speculative_decoding=lambda: True),
    ),
    "adaptive verification": _set(
        "speculative_config", _speculation(enable_adaptive_verification=True)
    ),
    "HiSparse": _set(
        "kv_transfer_config",
        SimpleNamespace(has_connector=lambda name: name == "HiSparseConnector"),
    ),
    "sleep mode": _set("model_config.enable_sleep_mode", True),
    "fast prefill": _set("cache_config.kv_sharing_fast_prefill", True),
    "R-SWA": _set("model_config.rswa_window", 128),
    "multimodal prefix": _set("model_config.is_mm_prefix_lm", True),
}


def test_an_engine_that_meets_every_need_is_eligible(vllm_config: Any) -> None:
    """With n-gram speculation, EAGLE and MTP, and without."""
    drafts = [_draft_model(method) for method in DRAFT_METHODS]
    for speculative_config in (None, _speculation(), *drafts):
        vllm_config.speculative_config = speculative_config
        assert unmet_needs(vllm_config) == ()


@pytest.mark.parametrize("words", CHANGES)
def test_each_unmet_need_is_told(words: str, vllm_config: Any) -> None:
    """It alone."""
    CHANGES[words](vllm_config)
    (need,) = unmet_needs(vllm_config)
    assert words in need.words


@pytest.mark.parametrize("is_other", ["use_gemma4_mtp", "use_multi_module_mtp"])
def test_other_kinds_of_mtp_are_told(is_other: str, vllm_config: Any) -> None:
    """They have speculators of their own."""
    draft = _draft_model("mtp", **{is_other: lambda: True})
    vllm_config.speculative_config = draft
    (need,) = unmet_needs(vllm_config)
    assert "MTP of one module (not Gemma 4's)" in need.words


def test_other_connectors_are_eligible(vllm_config: Any) -> None:
    """They get metadata that was made anew."""
    vllm_config.kv_transfer_config = SimpleNamespace(has_connector=lambda name: False)
    assert unmet_needs(vllm_config) == ()


def test_draft_models_of_several_data_parallel_ranks_are_told(vllm_config: Any) -> None:
    """Their agreement on padding was not run."""
    vllm_config.parallel_config.data_parallel_size = 2
    assert unmet_needs(vllm_config) == ()
    vllm_config.speculative_config = _draft_model("eagle")
    (need,) = unmet_needs(vllm_config)
    assert "with data_parallel_size 1 EAGLE" in need.words


def test_batch_invariance_and_other_versions_are_told(
    vllm_config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are no part of ``VllmConfig``."""
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.34.0")
    found = unmet_words(vllm_config)
    assert len(found) == 2
    assert found[0] == "vLLM 0.33.x (found 0.34.0)"
    assert "VLLM_BATCH_INVARIANT" in found[1]


def test_all_unmet_needs_are_one_message(vllm_config: Any) -> None:
    """In the order of the table, with what to do."""
    for words, change in CHANGES.items():
        if "speculation" not in words:
            change(vllm_config)
    needs = unmet_words(vllm_config)
    message = unmet_message("vllm.DefaultModelState", needs)
    assert len(needs) == len(CHANGES) - 2
    assert all(words in message for words in needs)
    assert "set its mode to off" in message


def test_the_documented_table_has_every_need() -> None:
    """One row a need, below the heading."""
    rows = needs_table().splitlines()
    assert len(rows) == 2 + len(NEEDS)
    assert all(need.words in row for need, row in zip(NEEDS, rows[2:], strict=True))
