"""The four KV-cache groups of DeepSeek-V4.1: specs, builders and block tables.

Groups in vLLM's order: the compressor's ring buffer, the sliding window, the
sparse indexer and sparse MLA. Record sizes are those of `models/deepseek_v41`.
Imports vLLM: only after `platform.install()`.
"""

import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.models.deepseek_v41.compressor import CompressorBackend
from vllm.v1.attention.backend import AttentionBackend
from vllm.v1.kv_cache_interface import (
    CircularBufferSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
)
from vllm.v1.worker.block_table import get_block_table_width
from vllm.v1.worker.gpu.block_table import BlockTables
from vllm.v1.worker.utils import AttentionGroup

from graphparity.conformance.vllm_on_cpu.engine_config import (
    NUM_GPU_BLOCKS,
    SLIDING_WINDOW,
)
from graphparity.conformance.vllm_on_cpu.platform import Flavour

GROUP_NAMES = ("compressor", "sliding_window", "sparse_indexer", "sparse_mla")


def backends(flavour: Flavour) -> tuple[type[AttentionBackend], ...]:
    """The backend of each group that vLLM selects on a GPU of `flavour`."""
    if flavour is Flavour.HOPPER:
        return _hopper_backends()
    return _blackwell_backends()


def _hopper_backends() -> tuple[type[AttentionBackend], ...]:
    from vllm.models.deepseek_v41.nvidia.flashmla import (
        DeepseekSparseSWAFlashMLABackend,
    )
    from vllm.models.deepseek_v41.sparse_mla import DeepseekV4FlashMLABackend
    from vllm.v1.attention.backends.mla.indexer import DeepseekV41IndexerBackend

    return (
        CompressorBackend,
        DeepseekSparseSWAFlashMLABackend,
        DeepseekV41IndexerBackend,
        DeepseekV4FlashMLABackend,
    )


def _blackwell_backends() -> tuple[type[AttentionBackend], ...]:
    from vllm.models.deepseek_v41.nvidia.flashinfer_sparse import (
        DeepseekSparseSWAFlashInferBackend,
        DeepseekV4FlashInferMLASparseBackend,
    )
    from vllm.v1.attention.backends.mla.sparse_indexer import (
        DeepseekV41SparseIndexerBackend,
    )

    return (
        CompressorBackend,
        DeepseekSparseSWAFlashInferBackend,
        DeepseekV41SparseIndexerBackend,
        DeepseekV4FlashInferMLASparseBackend,
    )


def kv_cache_specs(flavour: Flavour, bounded_replay: bool) -> tuple[KVCacheSpec, ...]:
    """The spec of each group.

    The indexer's backend fixes the block size of the MLA groups, and the sliding
    window takes any multiple of 32 (`get_supported_kernel_block_sizes`). An indexer
    row is 128 values and their scales: 132 bytes in fp8, 68 in mxfp4.
    """
    hopper = flavour is Flavour.HOPPER
    block_size = 64 if hopper else 128
    return (
        CircularBufferSpec(
            block_size=8,
            num_kv_heads=1,
            head_size=64,
            head_size_v=0,
            dtype=torch.float32,
        ),
        SlidingWindowMLASpec(
            block_size=64,
            num_kv_heads=1,
            head_size=512,
            dtype=torch.uint8,
            sliding_window=SLIDING_WINDOW,
            cache_dtype_str="fp8_ds_mla",
            state_content_bytes=584,
            alignment=576,
            model_version="deepseek_v4",
            bounded_replay=bounded_replay,
        ),
        _mla_spec(block_size, head_size=132 if hopper else 68, tokens_per_state=1),
        _mla_spec(block_size, head_size=512, tokens_per_state=2),
    )


def _mla_spec(
    block_size: int, *, head_size: int, tokens_per_state: int
) -> MLAAttentionSpec:
    return MLAAttentionSpec(
        block_size=block_size,
        num_kv_heads=1,
        head_size=head_size,
        dtype=torch.uint8,
        model_version="deepseek_v4",
        tokens_per_state=tokens_per_state,
    )


def kv_cache_config(specs: tuple[KVCacheSpec, ...]) -> KVCacheConfig:
    """One layer a group, named like the group."""
    groups = [
        KVCacheGroupSpec([name], spec)
        for name, spec in zip(GROUP_NAMES, specs, strict=True)
    ]
    return KVCacheConfig(NUM_GPU_BLOCKS, kv_cache_tensors=[], kv_cache_groups=groups)


def attention_groups(
    vllm_config: VllmConfig,
    flavour: Flavour,
    specs: tuple[KVCacheSpec, ...],
    device: torch.device,
) -> list[list[AttentionGroup]]:
    """One `AttentionGroup` a KV-cache group, with its metadata builder.

    Made as `init_attn_backend` (`v1/worker/gpu/attn_utils.py`) makes them.
    """
    attn_groups = []
    for i, (backend, spec) in enumerate(zip(backends(flavour), specs, strict=True)):
        group = AttentionGroup(backend, [GROUP_NAMES[i]], spec, i)
        with set_current_vllm_config(vllm_config):
            group.create_metadata_builders(vllm_config, device, spec.block_size)
        attn_groups.append([group])
    return attn_groups


def max_num_blocks_per_group(
    vllm_config: VllmConfig, specs: tuple[KVCacheSpec, ...]
) -> list[int]:
    """Width of each group's block table (`GPUModelRunner.initialize_kv_cache`)."""
    max_model_len = vllm_config.model_config.max_model_len
    return [
        get_block_table_width(
            spec.max_num_blocks_per_req(vllm_config, max_model_len),
            spec.block_size,
            token_alignment=spec.block_table_token_alignment,
        )
        for spec in specs
    ]


def block_tables(
    vllm_config: VllmConfig, specs: tuple[KVCacheSpec, ...], device: torch.device
) -> BlockTables:
    """`BlockTables` with the arguments that the runner passes for these specs."""
    scheduler_config = vllm_config.scheduler_config
    return BlockTables(
        block_sizes=[spec.block_size for spec in specs],
        max_num_reqs=scheduler_config.max_num_seqs,
        max_num_batched_tokens=scheduler_config.max_num_batched_tokens,
        max_num_blocks_per_group=max_num_blocks_per_group(vllm_config, specs),
        device=device,
        slot_mapping_enabled=[spec.uses_slot_mapping for spec in specs],
        dcp_sharded=[spec.dcp_sharded for spec in specs],
        sliding_window_reach=[
            spec.num_retained_tokens if isinstance(spec, SlidingWindowSpec) else 0
            for spec in specs
        ],
    )
