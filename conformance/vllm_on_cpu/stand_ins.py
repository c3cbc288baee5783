"""Stand-ins for what cannot load without a GPU, and the fields they fill.

A wheel of vLLM links CUDA libraries, so a CPU machine cannot load its compiled
modules, DeepGEMM or the CuTe DSL. Metadata builds need almost nothing of them:
that they import, a few yes-or-no questions, and of each kernel library one
operation, its schedule over the sequence lengths. Each replacement is named in
`STAND_INS`; metadata fields whose values come from one are named in
`STAND_IN_FIELDS`, and their values are not to be compared with a GPU's (their
addresses and presence are). Two builds on this machine use the same stand-in and
must agree.
"""

import importlib.machinery
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch

STAND_INS: dict[str, str] = {}
"""Name of every installed stand-in -> what it stands for."""

STAND_IN_FIELDS = frozenset(
    {"schedule_metadata", "tile_scheduler_metadata", "num_splits"}
)
"""Metadata fields filled by a stand-in: not comparable with a GPU's values."""

_COMPILED_MODULES = {
    "vllm._C_stable_libtorch": "vLLM's CUDA kernels",
    "vllm._moe_C_stable_libtorch": "vLLM's mixture-of-experts kernels",
    "vllm._flashmla_C": "FlashMLA's kernels",
    "vllm._flashmla_extension_C": "FlashMLA's extension kernels",
    "vllm._deepselect_C": "the DeepSelect top-k kernels",
    "vllm.vllm_flash_attn._vllm_fa2_C": "FlashAttention 2's kernels",
    "vllm.vllm_flash_attn._vllm_fa3_C": "FlashAttention 3's kernels",
}
_WARM_UP = "vllm.models.deepseek_v41.nvidia.specialized_decode.runtime.warmup"
# What `vllm/utils/deep_gemm.py` (`has_deep_gemm_sparse_mqa`) looks for; a
# builder only asks whether they exist.
_DEEP_GEMM_KERNELS = (
    "fp8_fp4_mqa_logits",
    "fp8_fp4_paged_mqa_logits",
    "fp8_fp4_sparse_mqa_logits",
    "fp8_fp4_paged_sparse_mqa_logits",
    "get_sparse_mqa_logits_metadata",
    "get_paged_sparse_mqa_logits_metadata",
)
# `torch.library` fragments undefine their operators when collected.
_LIBRARIES: list[Any] = []


@torch.library.custom_op("graphparity_stand_in::paged_mqa_schedule", mutates_args=())
def paged_mqa_schedule(context_lens: torch.Tensor, num_sms: int) -> torch.Tensor:
    """Split the pages of `context_lens` over `num_sms`: `[num_sms + 1, 2]` int32.

    DeepGEMM's `get_paged_mqa_logits_metadata` has the same shape, dtype and
    dependence on every context length, not the same values. One opaque operator,
    as on a GPU it is one kernel: a dispatch mode sees one node.
    """
    pages = torch.ceil(context_lens.reshape(-1).float() / 64).int().cumsum(0)
    pages_per_sm = (pages[-1] + num_sms - 1) // num_sms
    starts = torch.arange(num_sms + 1, device=context_lens.device) * pages_per_sm
    rows = torch.searchsorted(pages, starts, right=True)
    return torch.stack([rows.int(), starts.int()], 1)


def dense_fp8_schedule(
    cache_seqlens: torch.Tensor, num_q_tokens_per_head_k: int, num_heads_k: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """FlashMLA's schedule over an fp8 cache: tiles `[num_sm_parts, 8]` int32 and the
    first split of each request `[num_reqs + 1]` int32, as the kernel's.
    """
    num_sms = torch.cuda.get_device_properties().multi_processor_count
    num_sm_parts = num_sms // num_heads_k // -(-num_q_tokens_per_head_k // 64)
    blocks = torch.ceil(cache_seqlens.float() / 64).int().cumsum(0)
    starts = torch.arange(num_sm_parts, device=blocks.device)
    starts = starts * ((blocks[-1] + num_sm_parts - 1) // num_sm_parts)
    tiles = torch.zeros((num_sm_parts, 8), dtype=torch.int32, device=blocks.device)
    tiles[:, 0] = torch.searchsorted(blocks, starts, right=True)
    tiles[:, 1] = starts
    splits = torch.cat([blocks.new_zeros(1), blocks])
    return tiles, splits.int()


def cpu_attention_schedule(
    num_reqs: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    seq_lens: torch.Tensor,
    dtype: torch.dtype,
    query_start_loc: torch.Tensor,
    causal: bool,
    sliding_window_size: int,
    isa: str,
    enable_kv_split: bool,
    dynamic_causal: torch.Tensor | None = None,
    kv_cache_dtype: str = "auto",
) -> torch.Tensor:
    """CPU attention's schedule: a new tensor of one row a work item, of 512 tokens.

    vLLM's is host code that splits the sequences over threads: how much it returns
    depends on their lengths (`csrc/cpu/cpu_attn_impl.hpp`).
    """
    items = (seq_lens[:num_reqs] + 511) // 512
    return torch.arange(num_reqs).repeat_interleave(items).int()


def install_stand_ins(num_sms: int) -> None:
    """Install every stand-in for a GPU of `num_sms` multiprocessors.

    Must run before the first vLLM import, since `vllm/platforms/cuda.py` imports
    compiled modules and `vllm/utils/import_utils.py` caches what it found.
    """
    for name, meaning in _COMPILED_MODULES.items():
        _add_module(name, meaning)
    _add_module(_WARM_UP, "kernel tuning, which needs the CuTe DSL", warm_up=_nothing)
    _add_deep_gemm()
    _add_operators()
    _add_schedules()
    _add_device_properties(num_sms)


def _nothing(*_args: Any) -> None:
    """Stand-in of a call with no effect on metadata."""


def _add_module(name: str, meaning: str, **members: Any) -> None:
    """Put an importable module into `sys.modules`; `find_spec` must accept it."""
    module = ModuleType(name, meaning)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    vars(module).update(members)
    sys.modules[name] = module
    STAND_INS[name] = meaning


def _add_deep_gemm() -> None:
    """DeepGEMM 2.8, the first version with the sparse-indexer kernels."""

    def get_paged_mqa_logits_metadata(
        context_lens: torch.Tensor, _block_kv: int, num_sms: int, **_kwargs: Any
    ) -> Any:
        return paged_mqa_schedule(context_lens, num_sms)

    _add_module(
        "deep_gemm",
        "DeepGEMM: the schedule of paged logits, and the names of its kernels",
        __version__="2.8.0",
        get_paged_mqa_logits_metadata=get_paged_mqa_logits_metadata,
        **{name: _not_a_kernel(name) for name in _DEEP_GEMM_KERNELS},
    )


def _not_a_kernel(name: str) -> Any:
    def kernel(*_args: Any, **_kwargs: Any) -> None:
        raise NotImplementedError(f"{name} is a stand-in without a kernel.")

    return kernel


def _add_operators() -> None:
    """Questions that vLLM asks compiled operators while it imports and configures."""
    _define("_C", "cutlass_scaled_mm_supports_block_fp8(int cap) -> bool", True)
    _define("_C", "cutlass_scaled_mm_supports_fp8(int cap) -> bool", True)
    _define("_C", "cutlass_group_gemm_supported(int cap) -> bool", True)
    _define("_C", "cutlass_scaled_mm_supports_fp4(int cap) -> bool", True)
    # DeepSelect's strictest row alignment: `sparse_mqa_logits.py` checks it.
    _define("deep_select", "get_alignment_requirement() -> (int, int)", (1024, 1024))


def _add_schedules() -> None:
    """Operations that schedule over the sequence lengths, one operator each."""
    name = "_flashmla_extension_C::get_mla_decoding_metadata_dense_fp8"
    torch.library.custom_op(name, dense_fp8_schedule, mutates_args=())
    STAND_INS[f"torch.ops.{name}"] = "FlashMLA's schedule over an fp8 cache"
    name = "_C::get_scheduler_metadata"
    torch.library.custom_op(
        name,
        cpu_attention_schedule,
        mutates_args=(),
        tags=[torch.Tag.dynamic_output_shape],
    )
    STAND_INS[f"torch.ops.{name}"] = "CPU attention's schedule"


@contextmanager
def flashinfer_names() -> Iterator[None]:
    """While active, the FlashInfer names that its MLA backend imports exist.

    Not for the life of the process: vLLM would take FlashInfer for installed.
    """
    names = {
        "decode": ("trtllm_batch_decode_with_kv_cache_mla",),
        "utils": ("get_device_sm_count", "get_trtllm_gen_multi_ctas_kv_counter_bytes"),
    }
    modules = {"flashinfer": ModuleType("flashinfer")}
    for submodule, members in names.items():
        module = modules[f"flashinfer.{submodule}"] = ModuleType(submodule)
        vars(module).update({name: _not_a_kernel(name) for name in members})
    STAND_INS["flashinfer"] = "FlashInfer's names, while its MLA backend is imported"
    with mock.patch.dict(sys.modules, modules):
        yield


def _define(namespace: str, schema: str, answer: Any) -> None:
    untyped_library: Any = torch.library.Library
    library = untyped_library(namespace, "FRAGMENT")
    name = schema.partition("(")[0]
    library.define(schema)
    library.impl(name, lambda *_args: answer, "CompositeExplicitAutograd")
    _LIBRARIES.append(library)
    STAND_INS[f"torch.ops.{namespace}.{name}"] = f"a constant answer, {answer}"


def _add_device_properties(num_sms: int) -> None:
    properties = SimpleNamespace(multi_processor_count=num_sms)
    torch.cuda.get_device_properties = lambda *_args: properties  # type: ignore[assignment]
    STAND_INS["torch.cuda.get_device_properties"] = f"a GPU of {num_sms} SMs"
