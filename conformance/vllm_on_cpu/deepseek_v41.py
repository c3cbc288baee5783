"""One DeepSeek-V4.1 deployment on CPU tensors, as the runner would set it up.

`deploy(config)` follows `GPUModelRunner.initialize_kv_cache`
(`v1/worker/gpu/model_runner.py`): specs, metadata builders, block tables, the
resolved CUDA-graph mode and the `CudaGraphManager` that dispatches steps. Only
the forward pass is missing. Importing this module imports no vLLM.
"""

import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from graphparity.conformance.vllm_on_cpu.memory import (
    builder_memory,
    device_memory,
    rotating_memory,
)
from graphparity.conformance.vllm_on_cpu.platform import Flavour, install, use_gpu
from graphparity.fastpath.graph_key import GraphKey, keys_to_record

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.worker.gpu.block_table import BlockTables
    from vllm.v1.worker.gpu.cudagraph_utils import CudaGraphManager
    from vllm.v1.worker.gpu.input_batch import InputBuffers
    from vllm.v1.worker.gpu.states import RequestState
    from vllm.v1.worker.utils import AttentionGroup

__all__ = [
    "Deployment",
    "DeploymentConfig",
    "MinimalModel",
    "builder_memory",
    "deploy",
    "device_memory",
    "graph_keys",
    "model_state",
    "rotating_memory",
]


CPU = torch.device("cpu:0")


@dataclass(frozen=True)
class DeploymentConfig:
    """What a deployment depends on.

    Raises ValueError if `max_num_batched_tokens`, which bounds vLLM's capture
    sizes, does not hold `max_num_seqs` requests of `query_len` tokens: steps of
    many requests would have no FULL graph.
    """

    flavour: Flavour
    query_len: int = 1
    device: torch.device = CPU
    """An index tells a recorder factories of device memory from those of the host."""
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 128
    max_model_len: int = 1024
    bounded_replay: bool = True
    cudagraph_capture_sizes: list[int] | None = None
    """Sizes of graphs in tokens, as an operator sets them; None leaves them to vLLM,
    which adds one of `max_num_seqs` requests."""

    def __post_init__(self) -> None:
        if self.max_num_batched_tokens < self.max_num_seqs * self.query_len:
            raise ValueError(
                f"max_num_batched_tokens={self.max_num_batched_tokens} does not hold "
                f"{self.max_num_seqs} requests of {self.query_len} tokens."
            )


class MinimalModel(torch.nn.Module):
    """What the model states ask of a DeepSeek-V4.1 model, and no layer."""

    token_lookback_depth = 3

    def build_specialized_decode(self) -> object:
        """The decode executor, which only the forward pass uses."""
        return object()


@dataclass(frozen=True)
class Deployment:
    """The real vLLM objects that a model state works with."""

    config: DeploymentConfig
    vllm_config: "VllmConfig"
    device: torch.device
    model: torch.nn.Module
    input_buffers: "InputBuffers"
    block_tables: "BlockTables"
    req_states: "RequestState"
    # One list a KV-cache group, in the order of `kv_cache_groups.GROUP_NAMES`.
    attn_groups: "list[list[AttentionGroup]]"
    kv_cache_config: "KVCacheConfig"
    cudagraph_manager: "CudaGraphManager"
    # [num_kv_cache_groups] width of each group's block table.
    max_num_blocks: list[int]


def deploy(config: DeploymentConfig) -> Deployment:
    """Everything for `config`; the first call of a process imports vLLM."""
    if config.device.type == "cpu":
        install(config.flavour)
    else:
        use_gpu(config.flavour)
    from graphparity.conformance.vllm_on_cpu import engine_config, kv_cache_groups

    device = config.device
    vllm_config = engine_config.build_vllm_config(config)
    _initialize_parallel_groups(vllm_config)
    specs = kv_cache_groups.kv_cache_specs(config.flavour, config.bounded_replay)
    attn_groups = kv_cache_groups.attention_groups(
        vllm_config, config.flavour, specs, device
    )
    kv_cache_config = kv_cache_groups.kv_cache_config(specs)
    return Deployment(
        config=config,
        vllm_config=vllm_config,
        device=device,
        model=MinimalModel(),
        input_buffers=_input_buffers(config, device),
        block_tables=kv_cache_groups.block_tables(vllm_config, specs, device),
        req_states=_request_state(config, vllm_config, device),
        attn_groups=attn_groups,
        kv_cache_config=kv_cache_config,
        cudagraph_manager=_cudagraph_manager(
            config, vllm_config, attn_groups, kv_cache_config, device
        ),
        max_num_blocks=kv_cache_groups.max_num_blocks_per_group(vllm_config, specs),
    )


def model_state(deployment: Deployment, state_cls: type[Any]) -> Any:
    """A `state_cls` of `deployment` that knows the KV cache.

    Constructed as `init_model_state` (`v1/worker/gpu/model_states`) does it.
    """
    from vllm.config import set_current_vllm_config

    with set_current_vllm_config(deployment.vllm_config):
        state = state_cls(
            deployment.vllm_config, deployment.model, None, deployment.device
        )
    state.initialize_kv_cache(deployment.kv_cache_config, deployment.block_tables)
    return state


def graph_keys(deployment: Deployment) -> tuple[GraphKey, ...]:
    """The keys of the decode steps that vLLM runs as FULL graphs."""
    from vllm.config import CUDAGraphMode

    return keys_to_record(
        deployment.cudagraph_manager.dispatch,
        max_num_reqs=deployment.config.max_num_seqs,
        query_lens=[deployment.config.query_len],
        full_mode=CUDAGraphMode.FULL,
    )


def _initialize_parallel_groups(vllm_config: "VllmConfig") -> None:
    """A world of one process, which `CudaGraphManager` asks for its ranks."""
    from vllm.config import set_current_vllm_config
    from vllm.distributed import parallel_state

    if parallel_state.model_parallel_is_initialized():
        return
    # The rendezvous file is read here only.
    with tempfile.TemporaryDirectory() as folder, set_current_vllm_config(vllm_config):
        parallel_state.init_distributed_environment(
            1, 0, f"file://{folder}/store", 0, "gloo"
        )
        parallel_state.initialize_model_parallel()


def _input_buffers(config: DeploymentConfig, device: torch.device) -> "InputBuffers":
    from vllm.v1.worker.gpu.input_batch import InputBuffers

    return InputBuffers(config.max_num_seqs, config.max_num_batched_tokens, device)


def _request_state(
    config: DeploymentConfig, vllm_config: "VllmConfig", device: torch.device
) -> "RequestState":
    from vllm.v1.worker.gpu.states import RequestState

    return RequestState(
        config.max_num_seqs,
        config.max_model_len,
        config.max_num_batched_tokens,
        num_speculative_steps=config.query_len - 1,
        vocab_size=vllm_config.model_config.get_vocab_size(),
        device=device,
    )


def _cudagraph_manager(
    config: DeploymentConfig,
    vllm_config: "VllmConfig",
    attn_groups: "list[list[AttentionGroup]]",
    kv_cache_config: "KVCacheConfig",
    device: torch.device,
) -> "CudaGraphManager":
    """The runner's `CudaGraphManager`, in the mode vLLM resolves for the builders."""
    from vllm.v1.worker.gpu.attn_utils import get_attn_cg_support
    from vllm.v1.worker.gpu.cudagraph_utils import ModelCudaGraphManager

    support = get_attn_cg_support(attn_groups, vllm_config)
    # DeepSeek-V4.1 has breakable graphs (`config/vllm.py`), so piecewise capture
    # is available.
    mode = vllm_config.compilation_config.resolve_cudagraph_mode_and_sizes(
        support.min_cg_support,
        support.min_cg_attn_backend,
        config.query_len,
        use_v2_model_runner=True,
        kv_cache_config=kv_cache_config,
        max_num_reqs=config.max_num_seqs,
    )
    manager = ModelCudaGraphManager(vllm_config, device, mode, config.query_len)
    # `capture()` sets this last; until then `dispatch` answers with mode NONE.
    # There are no forward graphs here, and dispatch reads none.
    manager._graphs_captured = True
    return manager
