"""A Llama-like deployment of vLLM's ``DefaultModelState`` on CPU tensors.

Its layers are real ``Attention`` layers, from which vLLM's own code derives specs,
KV-cache groups, backends and builders, as ``GPUModelRunner.initialize_kv_cache``
does. Importing this module imports no vLLM.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from graphparity.conformance.vllm_on_cpu import deepseek_v41
from graphparity.conformance.vllm_on_cpu.deepseek_v41 import (
    Deployment,
    DeploymentConfig,
)
from graphparity.conformance.vllm_on_cpu.flash_attn_schedule import install_schedule
from graphparity.conformance.vllm_on_cpu.platform import install, use_gpu

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

NUM_LAYERS = 2
NUM_HEADS, NUM_KV_HEADS, HEAD_SIZE = 2, 1, 32
BLOCK_SIZE = 16


@dataclass(frozen=True)
class AttentionLayers:
    """The attention layers of a deployment."""

    backend: str
    """A name of vLLM's ``AttentionBackendEnum``."""
    windows: tuple[int | None, ...] = (None,) * NUM_LAYERS
    """[num_layers] sliding window of each layer in tokens; None for full attention.
    Layers of one window share a KV-cache group."""


def deploy_default(config: DeploymentConfig, layers: AttentionLayers) -> Deployment:
    """Everything for `config`; the first call of a process imports vLLM."""
    prepare_process(config)
    vllm_config = make_vllm_config(config, layers)
    model = attention_model(vllm_config, layers)
    return deploy_layers(config, vllm_config, model)


def prepare_process(config: DeploymentConfig) -> None:
    """Make vLLM of this process believe in the GPU of `config`, or use it."""
    if config.device.type == "cpu":
        install(config.flavour)
        install_schedule()
    else:
        use_gpu(config.flavour)


def deploy_layers(
    config: DeploymentConfig, vllm_config: "VllmConfig", model: torch.nn.Module
) -> Deployment:
    """What vLLM's own code makes of the layers that `vllm_config` knows."""
    from vllm.v1.worker.gpu.attn_utils import init_attn_backend

    from graphparity.conformance.vllm_on_cpu import kv_cache_groups

    device = config.device
    kv_cache_config = _kv_cache_config(vllm_config)
    attn_groups, _, _ = init_attn_backend(kv_cache_config, vllm_config, device)
    _clear_scratch(attn_groups)
    specs = tuple(group.kv_cache_spec for group in kv_cache_config.kv_cache_groups)
    return Deployment(
        config=config,
        vllm_config=vllm_config,
        device=device,
        model=model,
        input_buffers=deepseek_v41._input_buffers(config, device),
        block_tables=kv_cache_groups.block_tables(vllm_config, specs, device),
        req_states=deepseek_v41._request_state(config, vllm_config, device),
        attn_groups=attn_groups,
        kv_cache_config=kv_cache_config,
        cudagraph_manager=deepseek_v41._cudagraph_manager(
            config, vllm_config, attn_groups, kv_cache_config, device
        ),
        max_num_blocks=kv_cache_groups.max_num_blocks_per_group(vllm_config, specs),
    )


def make_vllm_config(config: DeploymentConfig, layers: AttentionLayers) -> "VllmConfig":
    """The configuration of `config`, in a world of one process; graph mode and sizes
    are vLLM's choice.
    """
    import json

    from vllm.engine.arg_utils import EngineArgs

    from graphparity.conformance.vllm_on_cpu import engine_config

    with tempfile.TemporaryDirectory() as folder:
        hf_config = engine_config._HF_CONFIG | {
            "max_position_embeddings": config.max_model_len
        }
        Path(folder, "config.json").write_text(json.dumps(hf_config), "utf-8")
        vllm_config = EngineArgs(
            model=folder,
            load_format="dummy",
            skip_tokenizer_init=True,
            dtype="bfloat16",
            block_size=BLOCK_SIZE,
            max_model_len=config.max_model_len,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            attention_backend=layers.backend,
            speculative_config=engine_config._speculative_config(config.query_len),
            cudagraph_capture_sizes=config.cudagraph_capture_sizes,
        ).create_engine_config()
    vllm_config.cache_config.num_gpu_blocks = engine_config.NUM_GPU_BLOCKS
    deepseek_v41._initialize_parallel_groups(vllm_config)
    return vllm_config


def attention_model(
    vllm_config: "VllmConfig", layers: AttentionLayers
) -> torch.nn.Module:
    """Attention layers alone; each registers itself with ``vllm_config``."""
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.layers.attention import Attention
    from vllm.utils.torch_utils import set_default_torch_dtype

    dtype = vllm_config.model_config.dtype
    with set_current_vllm_config(vllm_config), set_default_torch_dtype(dtype):
        attention: Sequence[Any] = [
            Attention(
                NUM_HEADS,
                HEAD_SIZE,
                scale=HEAD_SIZE**-0.5,
                num_kv_heads=NUM_KV_HEADS,
                cache_config=vllm_config.cache_config,
                per_layer_sliding_window=window,
                prefix=f"layers.{index}.attn",
            )
            for index, window in enumerate(layers.windows)
        ]
    return torch.nn.ModuleList(attention)


def _kv_cache_config(vllm_config: "VllmConfig") -> "KVCacheConfig":
    from vllm.v1.attention.backends.utils import resolve_kv_cache_layout
    from vllm.v1.core.kv_cache_planning import get_kv_cache_groups
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec

    from graphparity.conformance.vllm_on_cpu.engine_config import NUM_GPU_BLOCKS

    specs = get_kv_cache_spec(vllm_config)
    resolve_kv_cache_layout(vllm_config, [["LBNHC"]], specs.values())
    groups = get_kv_cache_groups(vllm_config, specs)
    return KVCacheConfig(NUM_GPU_BLOCKS, kv_cache_tensors=[], kv_cache_groups=groups)


def _clear_scratch(attn_groups: Any) -> None:
    """Zero what builders allocate uninitialised for kernels of the forward: what was
    there may be no number, which equals nothing.
    """
    for groups in attn_groups:
        for group in groups:
            for member in vars(group.get_metadata_builder()).values():
                if isinstance(member, torch.Tensor) and member.is_floating_point():
                    member.zero_()
