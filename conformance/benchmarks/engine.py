"""vLLM engines with random weights in this process, under the plug-in.

The plug-in is loaded as anywhere, by its entry point; where the distribution is not
installed, it is registered by hand.
"""

import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from graphparity.conformance.benchmarks.model_shapes import write_model
from graphparity.fastpath.vllm_plugin import register

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_USE_V2_MODEL_RUNNER": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "HF_HUB_OFFLINE": "1",
}
"""Set before vLLM is imported, unless set already."""

MAX_MODEL_LEN, MAX_NUM_SEQS = 8192, 64
LONGEST_PROMPT = 200
FORWARDS = 50
NUM_DRAFTS = 3
CAPTURE_SIZES = [1, 2, 4, 8, 16, 32, 64]
SPECULATION = {
    "method": "ngram",
    "num_speculative_tokens": NUM_DRAFTS,
    "prompt_lookup_max": 4,
    "prompt_lookup_min": 2,
}


@dataclass(frozen=True)
class Configuration:
    """One engine, and the batch sizes that it is measured at."""

    model: str
    backend: str
    batches: tuple[int, ...]
    extra: dict[str, Any] = field(default_factory=dict)
    is_compiled: bool = False
    """Whether the model is compiled, as vLLM does by default: fewer kernels, so that
    the GPU waits for the host sooner."""
    drafts: str = ""
    """How a draft model drafts: "eagle" by the shape named after the target, "mtp" by
    the target's own module; "" without one."""

    @property
    def name(self) -> str:
        """Model, backend, and what else it is."""
        compiled = ["compiled"] if self.is_compiled else []
        drafts = [self.drafts] if self.drafts else []
        return "/".join([self.model, self.backend, *compiled, *drafts, *self.extra])

    def write(self, folder: Path) -> dict[str, Any]:
        """Write the models into ``folder``; returns vLLM's settings of the drafts."""
        write_model(self.model, folder)
        if not self.drafts:
            return {}
        speculation: dict[str, Any] = {
            "method": self.drafts,
            "num_speculative_tokens": NUM_DRAFTS,
        }
        if self.drafts == "eagle":
            write_model(f"eagle-of-{self.model}", folder / "draft")
            speculation["model"] = str(folder / "draft")
        return {"speculative_config": speculation}


CONFIGURATIONS = (
    Configuration("qwen3-0.6b", "FLASH_ATTN", (1, 8, 64)),
    Configuration("qwen3-0.6b", "FLASH_ATTN", (1, 8), is_compiled=True),
    Configuration("qwen3-0.6b", "TRITON_ATTN", (1, 8, 64)),
    Configuration("gemma3-1b", "TRITON_ATTN", (1, 8)),
    Configuration(
        "qwen3-0.6b", "FLASH_ATTN", (8,), {"speculative_config": SPECULATION}
    ),
    Configuration("llama-8b", "FLASH_ATTN", (8,)),
    Configuration("qwen3-0.6b", "FLASH_ATTN", (1, 8), drafts="eagle"),
    Configuration("deepseek-v3-tiny", "FLASH_ATTN_MLA", (1, 8), drafts="mtp"),
    Configuration("deepseek-v3-tiny", "FLASHMLA", (1, 8), drafts="mtp"),
    Configuration("falcon-h1-tiny", "FLASH_ATTN", (1, 8)),
    Configuration(
        "deepseek-v41-tiny",
        "FLASHMLA_SPARSE_DSV41",
        (1, 8),
        {"limit_mm_per_prompt": {"image": 0}},
    ),
)


class Engine:
    """A vLLM engine in mode ``verify`` in this process."""

    def __init__(self, configuration: Configuration) -> None:
        from vllm import LLM  # noqa: PLC0415

        register()
        begin = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            drafting = configuration.write(Path(folder))
            self._llm = LLM(
                model=folder,
                skip_tokenizer_init=True,
                load_format="dummy",
                max_model_len=MAX_MODEL_LEN,
                max_num_seqs=MAX_NUM_SEQS,
                gpu_memory_utilization=0.4,
                enable_prefix_caching=False,
                compilation_config={
                    "mode": 3 if configuration.is_compiled else 0,
                    "cudagraph_mode": "FULL_DECODE_ONLY",
                    "cudagraph_capture_sizes": CAPTURE_SIZES,
                },
                attention_config={"backend": configuration.backend},
                additional_config={"graphparity": {"mode": "verify"}},
                **drafting,
                **configuration.extra,
            )
        self.start_s = time.perf_counter() - begin
        core: Any = self._llm.llm_engine.engine_core
        executor = core.engine_core.model_executor
        self.runner = executor.driver_worker.worker.model_runner
        self.state = self.runner.model_state

    def report(self) -> dict[str, Any]:
        """The plug-in's report; an engine that it left alone is an error."""
        from graphparity.fastpath.vllm_plugin.registration import (  # noqa: PLC0415
            report_of_model,
        )

        report = report_of_model(self.runner)
        if report.left_alone:
            raise RuntimeError(
                f"the plug-in left the engine alone: {report.left_alone}"
            )
        return report.as_dict()

    def generate(self, batch: int, num_tokens: int) -> list[list[int]]:
        """The greedy tokens of ``batch`` requests of unequal prompts, the same ones at
        every call.
        """
        from vllm import SamplingParams  # noqa: PLC0415

        rng = np.random.default_rng(batch)
        lengths = rng.integers(8, LONGEST_PROMPT, size=batch)
        prompts = [
            {"prompt_token_ids": rng.integers(10, 5000, size=length).tolist()}
            for length in lengths
        ]
        greedy = SamplingParams(
            temperature=0.0, max_tokens=num_tokens, ignore_eos=True, detokenize=False
        )
        outputs: Any = self._llm.generate(prompts, greedy, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    @property
    def num_drafts(self) -> int:
        """Draft tokens of a request and step."""
        speculation = self.runner.vllm_config.speculative_config
        return speculation.num_speculative_tokens if speculation else 0

    @property
    def draft_builds_a_step(self) -> int:
        """Recorded builds of a draft model's own in a step of the target."""
        return self.num_drafts - 1 if self.state.plugged.drafts is not None else 0

    def forward_gpu_us(self, batch: int) -> float:
        """Microseconds of the GPU for the FULL graph of a batch's forward, launched
        alone: a step cannot be shorter. After a batch only: it reads what that left.
        """
        graphs: dict[Any, torch.cuda.CUDAGraph] = self.runner.cudagraph_manager.graphs
        num_tokens = batch * (1 + self.num_drafts)
        fitting = [desc for desc in graphs if desc.num_tokens >= num_tokens]
        graph = graphs[min(fitting, key=lambda desc: desc.num_tokens)]
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        graph.replay()
        begin.record()
        for _ in range(FORWARDS):
            graph.replay()
        end.record()
        end.synchronize()
        return round(1e3 * float(begin.elapsed_time(end)) / FORWARDS, 1)
