"""Attention layers without weights: what metadata builders ask of a layer.

vLLM's `init_attn_backend` finds a group's backend through its layers, and MLA
builders read a layer's latent dimensions and clone its prefill backend, which a
decode build leaves alone. Imports vLLM: only after `platform.install()`.
"""

import torch
from vllm.config import VllmConfig
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.v1.attention.backend import AttentionBackend
from vllm.v1.kv_cache_interface import KVCacheSpec

LAYER_NAME = "layers.0.attn"
NUM_HEADS = 2


class UnusedPrefillBackend:
    """The prefill backend of an MLA layer; no decode step calls it."""

    def clone(self) -> "UnusedPrefillBackend":
        """A backend for one more builder."""
        return UnusedPrefillBackend()


class AttentionLayer(torch.nn.Module, AttentionLayerBase):  # type: ignore[misc]
    """A layer of `backend` with DeepSeek-V3's latent dimensions."""

    num_heads = NUM_HEADS
    q_lora_rank = None
    kv_lora_rank = 512
    qk_nope_head_dim = 128
    qk_rope_head_dim = 64
    v_head_dim = 128

    def __init__(self, backend: type[AttentionBackend], spec: KVCacheSpec) -> None:
        super().__init__()
        self._backend = backend
        self._spec = spec
        self.prefill_backend = UnusedPrefillBackend()

    def get_attn_backend(self) -> type[AttentionBackend]:
        """The backend of this layer's group."""
        return self._backend

    def get_kv_cache_spec(self, vllm_config: VllmConfig) -> KVCacheSpec | None:
        """The KV cache of this layer's group."""
        return self._spec
