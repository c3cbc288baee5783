"""One attention group set up as the runner would set it up, on CPU tensors.

Follows `GPUModelRunner.initialize_kv_cache` (`v1/worker/gpu/model_runner.py`)
for a model whose only KV-cache group is the one under test. Imports vLLM: only
after `platform.install()`.
"""

from dataclasses import dataclass
from typing import Any

import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec
from vllm.v1.worker.gpu.attn_utils import init_attn_backend
from vllm.v1.worker.gpu.block_table import BlockTables
from vllm.v1.worker.gpu.input_batch import InputBatch, InputBuffers
from vllm.v1.worker.utils import AttentionGroup

from graphparity.conformance.builders.attention_layers import (
    LAYER_NAME,
    AttentionLayer,
)
from graphparity.conformance.builders.settings import BuilderSetting
from graphparity.conformance.vllm_on_cpu.deepseek_v41 import DeploymentConfig
from graphparity.conformance.vllm_on_cpu.engine_config import (
    NUM_GPU_BLOCKS,
    build_vllm_config,
)
from graphparity.conformance.vllm_on_cpu.kv_cache_groups import block_tables
from graphparity.fastpath.runtime_batch import RunnerBuffers


@dataclass(frozen=True)
class GroupDeployment:
    """The real vLLM objects around one metadata builder."""

    vllm_config: VllmConfig
    device: torch.device
    kv_cache_config: KVCacheConfig
    attn_groups: list[list[AttentionGroup]]
    input_buffers: InputBuffers
    block_tables: BlockTables
    req_states: tuple[()] = ()
    """No request state: a metadata build reads none."""

    @property
    def builder(self) -> Any:
        """The metadata builder under test."""
        return self.attn_groups[0][0].get_metadata_builder()

    @property
    def runner(self) -> RunnerBuffers:
        """The runner's persistent buffers."""
        return RunnerBuffers(
            input_buffers=self.input_buffers,
            block_tables=self.block_tables,
            input_batch_cls=InputBatch,
            max_model_len=self.vllm_config.model_config.max_model_len,
            num_blocks=NUM_GPU_BLOCKS,
        )


def deploy_group(config: DeploymentConfig, setting: BuilderSetting) -> GroupDeployment:
    """The group of `setting` in an engine of `config`."""
    vllm_config = build_vllm_config(config)
    _adapt_model(vllm_config, setting)
    spec = setting.spec
    group = KVCacheGroupSpec([LAYER_NAME], spec)
    kv_cache_config = KVCacheConfig(NUM_GPU_BLOCKS, [], [group])
    layers = vllm_config.compilation_config.static_forward_context
    layers[LAYER_NAME] = AttentionLayer(setting.backend, spec)
    with set_current_vllm_config(vllm_config):
        attn_groups, _, kernel_block_sizes = init_attn_backend(
            kv_cache_config, vllm_config, config.device
        )
    assert kernel_block_sizes == [spec.block_size]
    return GroupDeployment(
        vllm_config=vllm_config,
        device=config.device,
        kv_cache_config=kv_cache_config,
        attn_groups=attn_groups,
        input_buffers=InputBuffers(
            config.max_num_seqs, config.max_num_batched_tokens, config.device
        ),
        block_tables=block_tables(vllm_config, (spec,), config.device),
    )


def _adapt_model(vllm_config: VllmConfig, setting: BuilderSetting) -> None:
    """Make the tiny model answer what this builder asks."""
    model_config = vllm_config.model_config
    for name, value in setting.model_attributes.items():
        setattr(model_config.hf_config, name, value)
    if setting.head_size is not None:
        model_config.model_arch_config.head_size = setting.head_size
    vllm_config.cache_config.cache_dtype = setting.cache_dtype
