"""Makes an engine, serves all requests with it, and tells what it did."""

# ruff: noqa: PLC0415, vLLM is imported once this process is prepared for it
import json
import os
import tempfile
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from graphparity.conformance.full_on_cpu.adapters import RANK, lora_requests
from graphparity.conformance.full_on_cpu.attention import built_by
from graphparity.conformance.full_on_cpu.data_parallel import join_ranks
from graphparity.conformance.full_on_cpu.drafts import (
    draft_fault,
    draft_prefills,
    frozen_metadata,
    speculation,
    target_model,
)
from graphparity.conformance.full_on_cpu.notes import NOTES
from graphparity.conformance.full_on_cpu.ranks import (
    HEADS,
    note_serving,
    told_by_ranks,
    wait_for_steps,
)
from graphparity.conformance.full_on_cpu.recorder import MeteredRecorder
from graphparity.conformance.full_on_cpu.scenarios import (
    BLOCK_SIZE,
    KERNELS_VARIABLE,
    MAX_NUM_BATCHED_TOKENS,
    MAX_NUM_SEQS,
    REPORT_PREFIX,
    Request,
    Scenario,
)
from graphparity.conformance.vllm_on_cpu.interpreter_speed import speed_up_interpreter


def prepare_process() -> None:
    """Environment and CPU kernels; before anything imports vLLM."""
    os.environ |= {
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        # Small functions of vLLM would be compiled anew in every process.
        "TORCHDYNAMO_DISABLE": "1",
        "TRITON_INTERPRET": "1",
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_PLUGINS": "graphparity",
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_USE_V2_MODEL_RUNNER": "1",
    }
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "INFO")
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    torch.ops.load_library(os.environ[KERNELS_VARIABLE])
    torch.set_num_threads(1)
    speed_up_interpreter()


def run(scenario: Scenario) -> dict[str, Any]:
    """Serve all waves on one engine: their tokens, or the error that stopped it, and
    the plug-in's report.
    """
    from vllm.distributed import cleanup_dist_env_and_memory

    name = REPORT_PREFIX if scenario.is_full else "without graphs"
    outcome: dict[str, Any] = {"run": name, "scenario": asdict(scenario)}
    NOTES.clear()
    builder = scenario.builder if scenario.is_full else ""
    model = target_model(scenario) | (HEADS if scenario.num_ranks > 1 else {})
    with (
        tempfile.TemporaryDirectory() as folder,
        built_by(builder, scenario.builder_rank),
        draft_prefills(scenario.draft_prefill),
        draft_fault(scenario.draft_fault),
        frozen_metadata() if scenario.is_frozen else nullcontext(),
    ):
        Path(folder, "config.json").write_text(json.dumps(model), "utf-8")
        adapters = lora_requests(Path(folder), scenario.num_adapters)
        wait_for_steps(scenario.step_timeout_s)
        llm = None
        try:
            llm = _engine(folder, scenario)
            outcome["tokens"] = [_serve(llm, wave, adapters) for wave in scenario.waves]
        except Exception as error:  # noqa: BLE001, it is the outcome
            outcome["error"] = f"{type(error).__name__}: {error}"
        outcome |= NOTES.as_dict()
        if llm is not None:
            outcome |= _told(llm, scenario, has_failed="error" in outcome)
            llm.llm_engine.engine_core.shutdown()
    del llm
    cleanup_dist_env_and_memory()
    return outcome


def _told(llm: Any, scenario: Scenario, *, has_failed: bool) -> dict[str, Any]:
    """What its ranks tell; after an error they may wait for one another, and cannot."""
    if scenario.num_ranks == 1:
        return told_by_ranks(llm, has_plug_in=scenario.mode is not None)[0]
    if has_failed:
        return {}
    return {"ranks": told_by_ranks(llm, has_plug_in=scenario.mode is not None)}


def _engine(model: str, scenario: Scenario) -> Any:
    from vllm import LLM

    return LLM(
        model=model,
        load_format="dummy",
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=128,
        max_num_seqs=MAX_NUM_SEQS,
        max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
        block_size=BLOCK_SIZE,
        kv_cache_memory_bytes=64 << 20,
        enable_prefix_caching=False,
        enforce_eager=not scenario.is_full,
        compilation_config={"mode": 0},
        seed=0,
        tensor_parallel_size=scenario.num_ranks,
        **_data_parallelism(scenario),
        **_plug_in(scenario),
        **_speculation(Path(model), scenario),
        **_lora(scenario),
        **_connector(scenario),
    )


def _data_parallelism(scenario: Scenario) -> dict[str, Any]:
    """This rank runs in this process, which is not to start another for it."""
    if scenario.data_parallel_rank is None:
        return {}
    join_ranks(scenario.data_parallel_rank, scenario.data_parallel_port)
    return {"distributed_executor_backend": "uni"}


def _plug_in(scenario: Scenario) -> dict[str, Any]:
    if scenario.mode is None:
        return {}
    from graphparity.fastpath.vllm_plugin.registration import install

    install(make_recorder=MeteredRecorder)
    settings = {"mode": scenario.mode, "level": scenario.level, "log_interval_s": 1}
    return {
        "additional_config": {"graphparity": settings},
        "worker_extension_cls": (
            "graphparity.fastpath.vllm_plugin.worker_extension.GraphparityWorker"
        ),
    }


def _speculation(folder: Path, scenario: Scenario) -> dict[str, Any]:
    if not scenario.num_drafts:
        return {}
    if scenario.draft != "ngram":
        return speculation(folder, scenario)
    settings = {
        "method": "ngram",
        "num_speculative_tokens": scenario.num_drafts,
        "prompt_lookup_min": 1,
        "prompt_lookup_max": 2,
    }
    return {"speculative_config": settings}


def _lora(scenario: Scenario) -> dict[str, Any]:
    """A FULL graph for every number of adapters in a step."""
    if not scenario.num_adapters:
        return {}
    return {
        "enable_lora": True,
        "max_loras": scenario.num_adapters,
        "max_lora_rank": RANK,
        "specialize_active_lora": True,
    }


def _connector(scenario: Scenario) -> dict[str, Any]:
    if not scenario.has_connector:
        return {}
    settings = {
        "kv_connector": "KeepingConnector",
        "kv_connector_module_path": "graphparity.conformance.full_on_cpu.connector",
        "kv_role": "kv_both",
    }
    return {"kv_transfer_config": settings}


def _serve(llm: Any, wave: list[Request], adapters: list[Any]) -> list[list[int]]:
    from vllm import SamplingParams

    params = [
        SamplingParams(
            temperature=0.0, max_tokens=it.max_tokens, ignore_eos=True, detokenize=False
        )
        for it in wave
    ]
    prompts = [{"prompt_token_ids": it.prompt} for it in wave]
    lora = [adapters[i % len(adapters)] for i in range(len(wave))]
    llm.collective_rpc(note_serving, args=(True,))
    outputs = llm.generate(prompts, params, use_tqdm=False, lora_request=lora)
    llm.collective_rpc(note_serving, args=(False,))
    return [list(output.outputs[0].token_ids) for output in outputs]
