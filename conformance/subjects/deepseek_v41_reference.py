"""Our reference model state, set up for a deployment of vLLM's DeepSeek-V4.1."""

import torch

from graphparity.conformance.subjects.subject import ReferenceSide
from graphparity.conformance.vllm_on_cpu.deepseek_v41 import Deployment, MinimalModel
from graphparity.conformance.vllm_on_cpu.platform import Flavour
from graphparity.reference.attention import (
    AttentionGroup,
    AttentionMetadataBuilder,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
)
from graphparity.reference.compressor import CompressorMetadataBuilder
from graphparity.reference.interface import CUDAGraphMode
from graphparity.reference.kv_cache_interface import (
    CircularBufferSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
)
from graphparity.reference.model_state import DecodeConfig, ReferenceModelState
from graphparity.reference.sliding_window import SlidingWindowMetadataBuilder
from graphparity.reference.sparse_indexer import DecodeRows, hopper_rows
from graphparity.reference.sparse_indexer_builder import SparseIndexerMetadataBuilder
from graphparity.reference.sparse_mla import SparseMLAMetadataBuilder


def reference_side(deployment: Deployment) -> ReferenceSide:
    """A reference state and its four groups, with the deployment's sizes."""
    config = deployment.config
    state = ReferenceModelState(
        DecodeConfig(
            max_num_reqs=config.max_num_seqs,
            max_num_tokens=config.max_num_batched_tokens,
            max_model_len=config.max_model_len,
            token_lookback_depth=MinimalModel.token_lookback_depth,
            device=torch.device("cpu"),
            decode_query_len=config.query_len,
        )
    )
    groups = _groups(deployment)
    specs = [KVCacheGroupSpec(g.layer_names, g.kv_cache_spec) for g in groups]
    return ReferenceSide(
        state=state,
        attn_groups=[[group] for group in groups],
        kv_cache_config=KVCacheConfig(
            num_blocks=deployment.kv_cache_config.num_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=specs,
        ),
        modes=CUDAGraphMode,
    )


def _groups(deployment: Deployment) -> list[AttentionGroup]:
    specs = _specs(deployment)
    layers = [g.layer_names for g in deployment.kv_cache_config.kv_cache_groups]
    builders = _builders(deployment, specs)
    return [
        AttentionGroup(object, names, spec, group_id, metadata_builders=[builder])
        for group_id, (names, spec, builder) in enumerate(
            zip(layers, specs, builders, strict=True)
        )
    ]


Specs = tuple[
    CircularBufferSpec, SlidingWindowMLASpec, MLAAttentionSpec, MLAAttentionSpec
]


def _specs(deployment: Deployment) -> Specs:
    """The deployment's specs, in our own words."""
    vllm_specs = [g.kv_cache_spec for g in deployment.kv_cache_config.kv_cache_groups]
    ring, window, indexer, mla = vllm_specs
    return (
        CircularBufferSpec(block_size=ring.block_size),
        SlidingWindowMLASpec(
            block_size=window.block_size,
            sliding_window=window.sliding_window,
            bounded_replay=window.bounded_replay,
        ),
        MLAAttentionSpec(block_size=indexer.block_size),
        MLAAttentionSpec(
            block_size=mla.block_size, tokens_per_state=mla.tokens_per_state
        ),
    )


def _builders(
    deployment: Deployment, specs: Specs
) -> tuple[AttentionMetadataBuilder, ...]:
    ring, window, indexer, mla = specs
    query_len = deployment.config.query_len
    topk_tokens = deployment.vllm_config.model_config.hf_config.index_topk
    return (
        CompressorMetadataBuilder(ring),
        SlidingWindowMetadataBuilder(window, decode_query_len=query_len),
        _indexer_builder(deployment, indexer),
        SparseMLAMetadataBuilder(mla, topk_tokens=topk_tokens),
    )


def _indexer_builder(
    deployment: Deployment, spec: KVCacheSpec
) -> SparseIndexerMetadataBuilder:
    query_len = deployment.config.query_len
    assert isinstance(spec, MLAAttentionSpec)
    if deployment.config.flavour is Flavour.HOPPER:
        return SparseIndexerMetadataBuilder(
            spec, rows=hopper_rows(query_len), decode_query_len=query_len
        )
    from vllm.model_executor.kernels.attention.dsa.sparse_mqa_logits import (
        pick_sparse_block_kv,
    )

    candidate = deployment.vllm_config.model_config.hf_config.candidate_block_size
    return SparseIndexerMetadataBuilder(
        spec,
        rows=DecodeRows.VARLEN,
        sparse_block_kv=pick_sparse_block_kv(candidate),
        decode_query_len=query_len,
    )
