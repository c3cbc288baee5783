"""vLLM's side of every case: backend, KV-cache spec, and the model it reads.

The four groups of DeepSeek-V4.1 are those of `vllm_on_cpu.kv_cache_groups`; the
others are taken alone, each with the smallest spec its backend supports.
Imports vLLM: only after `platform.install()`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from vllm.v1.attention.backend import AttentionBackend
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
)

from graphparity.conformance.vllm_on_cpu.kv_cache_groups import (
    GROUP_NAMES,
    backends,
    kv_cache_specs,
)
from graphparity.conformance.vllm_on_cpu.platform import Flavour
from graphparity.conformance.vllm_on_cpu.stand_ins import flashinfer_names

_BACKENDS = "vllm.v1.attention.backends."
_MLA_HEAD_SIZE = 576
# Compress ratios would make vLLM read V4.1's dimensions (`get_mla_dims`).
_DEEPSEEK_V3 = {"compress_ratios": None}


@dataclass(frozen=True)
class BuilderSetting:
    """How vLLM would come to use a builder."""

    backend: type[AttentionBackend]
    spec: KVCacheSpec
    model_attributes: Mapping[str, Any] = field(default_factory=dict)
    """Attributes of the model's Hugging Face configuration."""
    head_size: int | None = None
    """Head size that the model reports; None keeps the tiny model's."""
    cache_dtype: str = "auto"


def setting_of(name: str, flavour: Flavour, query_len: int) -> BuilderSetting:
    """The setting of the case `name`; KeyError if no builder has that name."""
    if name in _DEEPSEEK_V41_GROUPS:
        return _deepseek_v41_group(_DEEPSEEK_V41_GROUPS[name], flavour)
    return _SETTINGS[name](query_len)


# Case -> KV-cache group of DeepSeek-V4.1, whose flavour selects the builder.
_DEEPSEEK_V41_GROUPS = {
    "compressor": "compressor",
    "sliding_window_flashmla": "sliding_window",
    "sliding_window_flashinfer": "sliding_window",
    "deepseek_v41_indexer": "sparse_indexer",
    "deepseek_v41_sparse_indexer": "sparse_indexer",
    "sparse_mla_flashmla": "sparse_mla",
    "sparse_mla_flashinfer": "sparse_mla",
}


def _deepseek_v41_group(group: str, flavour: Flavour) -> BuilderSetting:
    index = GROUP_NAMES.index(group)
    specs = kv_cache_specs(flavour, bounded_replay=False)
    return BuilderSetting(backends(flavour)[index], specs[index])


def _backend(module: str, name: str) -> type[AttentionBackend]:
    found: type[AttentionBackend] = getattr(import_module(_BACKENDS + module), name)
    return found


def _full_attention(
    module: str, name: str, block_size: int = 16
) -> Callable[[int], BuilderSetting]:
    """A grouped-query backend of the tiny model."""

    def setting(_query_len: int) -> BuilderSetting:
        spec = FullAttentionSpec(
            block_size=block_size, num_kv_heads=1, head_size=32, dtype=torch.bfloat16
        )
        return BuilderSetting(_backend(module, name), spec)

    return setting


def _mla(
    module: str, name: str, cache_dtype: str = "auto", **spec_fields: Any
) -> Callable[[int], BuilderSetting]:
    """A backend over DeepSeek-V3's latent cache."""

    def setting(_query_len: int) -> BuilderSetting:
        fields: dict[str, Any] = {
            "block_size": 64,
            "num_kv_heads": 1,
            "head_size": _MLA_HEAD_SIZE,
            "dtype": torch.bfloat16,
        }
        return BuilderSetting(
            _backend(module, name),
            MLAAttentionSpec(**fields | spec_fields),
            model_attributes=_DEEPSEEK_V3,
            head_size=_MLA_HEAD_SIZE,
            cache_dtype=cache_dtype,
        )

    return setting


def _mamba(module: str, name: str, kind: str) -> Callable[[int], BuilderSetting]:
    """A recurrent backend: one state block a request, one more a draft token."""

    def setting(query_len: int) -> BuilderSetting:
        spec = MambaSpec(
            block_size=1024,
            shapes=((4, 16), (2, 8, 8)),
            dtypes=(torch.float32, torch.float32),
            mamba_type=MambaAttentionBackendEnum[kind],
            num_speculative_blocks=query_len - 1,
        )
        return BuilderSetting(_backend(module, name), spec)

    return setting


def _flashinfer_mla(query_len: int) -> BuilderSetting:
    setting = _mla("mla.flashinfer_mla", "FlashInferMLABackend")
    if find_spec("flashinfer") is not None:
        return setting(query_len)
    with flashinfer_names():
        return setting(query_len)


_FLASH_ATTENTION = _full_attention("flash_attn", "FlashAttentionBackend")
_V32_INDEXER = _mla(
    "mla.indexer", "DeepseekV32IndexerBackend", head_size=132, dtype=torch.uint8
)
_MAMBA2 = _mamba("mamba2_attn", "Mamba2AttentionBackend", "MAMBA2")
_GDN = _mamba("gdn_attn", "GDNAttentionBackend", "GDN_ATTN")
_SETTINGS: dict[str, Callable[[int], BuilderSetting]] = {
    "flash_attention": _FLASH_ATTENTION,
    "flash_attention_4": _FLASH_ATTENTION,
    "triton_attention": _full_attention("triton_attn", "TritonAttentionBackend"),
    "flex_attention": _full_attention("flex_attention", "FlexAttentionBackend"),
    "cpu_attention": _full_attention("cpu_attn", "CPUAttentionBackend", 32),
    "deepseek_v32_indexer": _V32_INDEXER,
    "deepseek_v32_indexer_speculation": _V32_INDEXER,
    "flashmla": _mla("mla.flashmla", "FlashMLABackend"),
    "flashmla_fp8": _mla("mla.flashmla", "FlashMLABackend", "fp8"),
    "triton_mla": _mla("mla.triton_mla", "TritonMLABackend"),
    "flash_attn_mla": _mla("mla.flashattn_mla", "FlashAttnMLABackend"),
    "flashinfer_mla": _flashinfer_mla,
    "flashmla_sparse": _mla("mla.flashmla_sparse", "FlashMLASparseBackend"),
    "mamba2": _MAMBA2,
    "mamba2_speculation": _MAMBA2,
    "gdn": _GDN,
    "gdn_speculation": _GDN,
}
