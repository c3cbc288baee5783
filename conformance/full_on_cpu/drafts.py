"""Draft models of the engine, and what their prefills read and draft.

A draft's prefill runs as a FULL graph wherever the target's step does. Here it can be
kept out of graphs, so that it reads, on the host, the metadata of replayed steps.
"""

# ruff: noqa: PLC0415, vLLM is imported once this process is prepared for it
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, wraps
from pathlib import Path
from typing import Any
from unittest import mock

from graphparity.conformance.full_on_cpu.notes import NOTES
from graphparity.conformance.full_on_cpu.scenarios import MODEL, Scenario

MTP_MODEL = MODEL | {
    "architectures": ["MiMoForCausalLM"],
    "model_type": "qwen2",
    "num_nextn_predict_layers": 1,
}
"""A target whose checkpoint has a module that drafts."""


def target_model(scenario: Scenario) -> dict[str, Any]:
    """The configuration of the model that is served."""
    return MTP_MODEL if scenario.draft == "mtp" else MODEL


def speculation(folder: Path, scenario: Scenario) -> dict[str, Any]:
    """The settings of vLLM for a draft model, which is written to ``folder``."""
    settings = {
        "method": scenario.draft,
        "num_speculative_tokens": scenario.num_drafts,
    }
    if scenario.draft != "mtp":
        draft = folder / "draft"
        draft.mkdir()
        config = MODEL | {"num_hidden_layers": 1}
        if scenario.draft == "eagle3":
            config |= {
                "eagle_aux_hidden_state_layer_ids": [1, 2],
                "num_aux_hidden_states": 2,
            }
        (draft / "config.json").write_text(json.dumps(config), "utf-8")
        settings["model"] = str(draft)
    return {"speculative_config": settings}


@cache
def note_drafts() -> None:
    """Note every step's drafts, and what eager draft prefills read; idempotent."""
    from vllm.v1.worker.gpu.spec_decode.target_dependent_ar import speculator

    cls = speculator.TargetDependentARSpeculator
    cls.propose = _noting(cls.propose)
    cls._prefill = _reading(cls._prefill)


def _noting(propose: Any) -> Any:
    @wraps(propose)
    def noting(self: Any, input_batch: Any, attn_metadata: Any, *args: Any, **kwargs: Any) -> Any:  # fmt: skip # noqa: E501
        NOTES.handed_out = attn_metadata
        drafts = propose(self, input_batch, attn_metadata, *args, **kwargs)
        NOTES.handed_out = None
        if NOTES.is_serving:
            NOTES.drafts[-1].append(drafts.tolist())
        return drafts

    return noting


def _reading(prefill: Any) -> Any:
    @wraps(prefill)
    def reading(self: Any, num_reqs: int, num_tokens: int, attn_metadata: Any, *args: Any, **kwargs: Any) -> Any:  # fmt: skip # noqa: E501
        if NOTES.is_serving and attn_metadata is NOTES.handed_out:
            (layer,) = self.draft_attn_layer_names
            read = attn_metadata[layer]
            NOTES.draft_prefills[-1].append([read.max_query_len, read.max_seq_len])
        return prefill(self, num_reqs, num_tokens, attn_metadata, *args, **kwargs)

    return reading


@contextmanager
def draft_prefills(kind: str) -> Iterator[None]:
    """Let draft prefills run as ``Scenario.draft_prefill`` says."""
    if kind == "graph":
        yield
        return
    from vllm.config import CUDAGraphMode
    from vllm.v1.worker.gpu.spec_decode.target_dependent_ar import speculator

    cls = speculator.TargetDependentARSpeculator
    init = cls.init_cudagraph_manager

    def without_prefill_graphs(self: Any, cudagraph_mode: Any) -> None:
        init(self, cudagraph_mode)
        self.prefill_cudagraph_manager = speculator.SpeculatorCudaGraphManager(
            self.vllm_config,
            self.device,
            CUDAGraphMode.NONE,
            self.num_speculative_steps + 1,
        )

    with mock.patch.object(cls, "init_cudagraph_manager", without_prefill_graphs):
        yield


@contextmanager
def frozen_metadata() -> Iterator[None]:
    """Planted: who reads a replayed step's metadata is handed out the recording's."""
    from graphparity.fastpath.fresh_replays import FreshReplays

    def as_captured(self: Any, replayed: Any, input_batch: Any) -> Any:
        return replayed

    with mock.patch.object(FreshReplays, "_made_anew", as_captured):
        yield


def draft_fault(name: str) -> AbstractContextManager[Any]:
    """Planted in a draft model's own builds, as ``Scenario.draft_fault`` says."""
    faults: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "": nullcontext,
        "stale_slots": lambda: _stale(".slot_mapping"),
        "stale_build": lambda: _stale(""),
        "frozen_bound": _frozen_bound,
    }
    return faults[name]()


@contextmanager
def _stale(suffix: str) -> Iterator[None]:
    """A replay leaves what the build before it left in the builders' tensors of these
    names.
    """
    from graphparity.fastpath.builder_memory import builder_memory
    from graphparity.fastpath.vllm_plugin.draft_builds import DraftBuilds

    replay = DraftBuilds._replay

    def leaving(self: Any, *step: Any) -> Any:
        memory = builder_memory(self.attn_groups, self.decodes.runner.device)
        left = [it for path, it in memory.items() if path.endswith(suffix)]
        before = [it.clone() for it in left]
        replayed = replay(self, *step)
        for stale, values in zip(left, before, strict=True):
            stale.copy_(values)
        return replayed

    with mock.patch.object(DraftBuilds, "_replay", leaving):
        yield


@contextmanager
def _frozen_bound() -> Iterator[None]:
    """Builds are recorded under the bounds of a step of one-token sequences."""
    from graphparity.fastpath.decode_batch import padded_decode_batch
    from graphparity.fastpath.vllm_plugin import draft_builds

    def of_one_token(key: Any, input_buffers: Any, max_model_len: int) -> Any:
        del max_model_len
        return padded_decode_batch(key, input_buffers, 1)

    with mock.patch.object(draft_builds, "padded_decode_batch", of_one_token):
        yield
