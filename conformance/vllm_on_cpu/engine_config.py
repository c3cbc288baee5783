"""The `VllmConfig` of a small DeepSeek-V4.1 deployment, from vLLM's own factory.

Imports vLLM: only after `platform.install()`.
"""

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs

from graphparity.conformance.vllm_on_cpu.platform import Flavour

if TYPE_CHECKING:
    from graphparity.conformance.vllm_on_cpu.deepseek_v41 import DeploymentConfig

NUM_GPU_BLOCKS = 4000
SLIDING_WINDOW = 128

# A model that vLLM knows and that needs no file but this one.
_HF_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "vocab_size": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
}
# What the builders read of DeepSeek-V4.1's configuration.
_DEEPSEEK_V41 = {
    "sliding_window": SLIDING_WINDOW,
    "compress_ratios": [0, 1, 2],
    "index_topk": 512,
    "index_n_heads": 32,
    "index_head_dim": 128,
    "candidate_block_size": 64,
    "candidate_topk_blocks": 8,
    "q_lora_rank": None,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}


def build_vllm_config(config: "DeploymentConfig") -> VllmConfig:
    """The configuration of `config`; graph mode and sizes are vLLM's choice."""
    with tempfile.TemporaryDirectory() as folder:
        hf_config = _HF_CONFIG | {"max_position_embeddings": config.max_model_len}
        Path(folder, "config.json").write_text(json.dumps(hf_config), "utf-8")
        vllm_config = _engine_args(config, folder).create_engine_config()
    _become_deepseek_v41(vllm_config, config)
    return vllm_config


def _engine_args(config: "DeploymentConfig", model: str) -> EngineArgs:
    return EngineArgs(
        model=model,
        load_format="dummy",
        skip_tokenizer_init=True,
        dtype="bfloat16",
        max_model_len=config.max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        swa_bounded_replay=config.bounded_replay,
        speculative_config=_speculative_config(config.query_len),
        cudagraph_capture_sizes=config.cudagraph_capture_sizes,
    )


def _speculative_config(query_len: int) -> dict[str, Any] | None:
    """Decode steps of `query_len` tokens: one sampled, the rest drafted."""
    if query_len == 1:
        return None
    return {
        "method": "ngram",
        "num_speculative_tokens": query_len - 1,
        "prompt_lookup_max": 4,
    }


def _become_deepseek_v41(vllm_config: VllmConfig, config: "DeploymentConfig") -> None:
    """Give the tiny model the attributes that DeepSeek-V4.1's builders read.

    Set afterwards, because a DeepSeek configuration would make vLLM look for
    kernels and weights that a metadata build does not touch.
    """
    for name, value in _DEEPSEEK_V41.items():
        setattr(vllm_config.model_config.hf_config, name, value)
    vllm_config.cache_config.num_gpu_blocks = NUM_GPU_BLOCKS
    if config.flavour is Flavour.BLACKWELL:
        # The sparse indexer refuses any other cache (`mla/sparse_indexer.py`).
        vllm_config.attention_config.indexer_kv_dtype = "mxfp4"
