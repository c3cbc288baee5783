"""A deployment of vLLM's ``MambaHybridModelState`` on CPU tensors.

One real ``Attention`` layer of full attention, and layers of a recurrent backend
without weights: a builder asks a layer for no more than its backend and spec. KV-cache
groups and builders are derived from them by vLLM's own code. Importing this module
imports no vLLM.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from graphparity.conformance.vllm_on_cpu.deepseek_v41 import (
    Deployment,
    DeploymentConfig,
)
from graphparity.conformance.vllm_on_cpu.default_deployment import (
    BLOCK_SIZE,
    HEAD_SIZE,
    NUM_KV_HEADS,
    AttentionLayers,
    attention_model,
    deploy_layers,
    make_vllm_config,
    prepare_process,
)

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import MambaSpec

_ATTENTION_PAGE = 2 * BLOCK_SIZE * NUM_KV_HEADS * HEAD_SIZE * 2
"""Bytes of an attention block: keys and values of two bytes each. vLLM pads a recurrent
state to it."""


@dataclass(frozen=True)
class RecurrentLayers:
    """The recurrent layers of a hybrid, and the attention beside them."""

    mamba_type: str
    """A name of vLLM's ``MambaAttentionBackendEnum``, which leads to the backend."""
    attention: str = "TRITON_ATTN"
    """A name of vLLM's ``AttentionBackendEnum``."""
    backend: str = ""
    """``module:class`` of another backend; empty for that of ``mamba_type``."""
    num_layers: int = 1
    """A KV-cache group each, for there is one attention layer."""


def deploy_hybrid(config: DeploymentConfig, layers: RecurrentLayers) -> Deployment:
    """Everything for `config`; the first call of a process imports vLLM."""
    prepare_process(config)
    from graphparity.conformance.builders.attention_layers import AttentionLayer

    attention = AttentionLayers(layers.attention, windows=(None,))
    vllm_config = make_vllm_config(config, attention)
    model = attention_model(vllm_config, attention)
    spec = _recurrent_spec(config, layers)
    context = vllm_config.compilation_config.static_forward_context
    for index in range(1, layers.num_layers + 1):
        context[f"layers.{index}.mixer"] = AttentionLayer(_backend(layers), spec)
    return deploy_layers(config, vllm_config, model)


def _recurrent_spec(config: DeploymentConfig, layers: RecurrentLayers) -> "MambaSpec":
    """One state block a request, and one more a draft token."""
    from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum
    from vllm.v1.kv_cache_interface import MambaSpec

    return MambaSpec(
        block_size=config.max_model_len,
        shapes=((4, 16), (2, 8, 8)),
        dtypes=(torch.float32, torch.float32),
        page_size_padded=_ATTENTION_PAGE,
        mamba_type=MambaAttentionBackendEnum[layers.mamba_type],
        num_speculative_blocks=config.query_len - 1,
    )


def _backend(layers: RecurrentLayers) -> Any:
    from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum

    if not layers.backend:
        return MambaAttentionBackendEnum[layers.mamba_type].get_class()
    module, _, name = layers.backend.partition(":")
    return getattr(import_module(module), name)
