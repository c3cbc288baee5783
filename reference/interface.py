"""The one interface through which a model state is touched.

Place: reference, fast path and vLLM's own states all offer it; the conformance
suite knows nothing else. From vLLM's ``v1/worker/gpu/model_states/interface.py``
and ``config/compilation.py``.
Invariant: names, order, parameter names and defaults are vLLM's; a contract test
compares the signatures.
"""

from abc import ABC, abstractmethod
from enum import Enum
from typing import Any, Protocol

import torch

from graphparity.reference.attention import AttentionGroup, KVCacheConfig
from graphparity.reference.block_table import BlockTables
from graphparity.reference.input_batch import InputBatch, InputBuffers


class CUDAGraphMode(Enum):
    """How a step's forward runs; the values are vLLM's."""

    NONE = 0
    PIECEWISE = 1
    FULL = 2


class NewRequestData(Protocol):
    """What ``add_request`` reads of a new request (vLLM ``v1/core/sched/output``)."""

    @property
    def replay_start(self) -> int:
        """First position from which the request holds sliding-window KV."""


class DeviceTensor(Protocol):
    """A buffer with a device side."""

    @property
    def gpu(self) -> torch.Tensor:
        """The device tensor."""


class RequestState(Protocol):
    """What ``prepare_inputs`` reads of the request table."""

    @property
    def all_token_ids(self) -> DeviceTensor:
        """``[max_num_reqs, max_model_len]`` int32: each request's token ids."""


class ModelState(ABC):
    """What the runner asks of a model each step."""

    num_new_sampled_tokens_per_step: int = 1
    """New tokens sampled on each decode step, accepted drafts not counted."""

    @property
    @abstractmethod
    def max_model_len(self) -> int:
        """Longest sequence, in tokens."""

    def add_request(self, req_index: int, new_req_data: NewRequestData) -> None:
        """Take a request into row ``req_index`` of the request table."""
        return None

    def remove_request(self, req_id: str) -> None:
        """Forget a request."""
        return None

    def apply_staged_writes(self) -> None:
        """Make writes staged by ``add_request`` visible on the device."""
        return None

    def initialize_kv_cache(
        self, kv_cache_config: KVCacheConfig, block_tables: BlockTables
    ) -> None:
        """Called after the KV cache tensors are allocated and bound."""
        return None

    def capture_inner_cudagraphs(
        self,
        input_buffers: InputBuffers,
        block_tables: BlockTables,
        attn_groups: list[list[AttentionGroup]],
        kv_cache_config: KVCacheConfig,
    ) -> None:
        """Capture the CUDA graphs this state runs inside the model's forward."""
        return None

    @abstractmethod
    def prepare_inputs(
        self, input_batch: InputBatch, req_states: RequestState
    ) -> dict[str, Any]:
        """The model's extra inputs for a step, by keyword."""

    @abstractmethod
    def prepare_dummy_inputs(self, num_reqs: int, num_tokens: int) -> dict[str, Any]:
        """The model's extra inputs for a dummy step, by keyword."""

    @abstractmethod
    def prepare_attn(  # vLLM's signature
        self,
        input_batch: InputBatch,
        cudagraph_mode: CUDAGraphMode,
        block_tables: tuple[torch.Tensor, ...],
        slot_mappings: torch.Tensor,
        attn_groups: list[list[AttentionGroup]],
        kv_cache_config: KVCacheConfig,
        for_capture: bool = False,
        ubatch_idx: int = 0,
    ) -> dict[str, Any]:
        """Build the step's attention metadata, by layer name.

        Args:
            input_batch: the step's batch, padded in FULL mode.
            cudagraph_mode: FULL takes padded sizes, the other modes real ones.
            block_tables: a group each, ``[num_reqs_after_padding, max_num_blocks]``.
            slot_mappings: ``[num_groups, num_tokens_after_padding]`` int64.
            attn_groups: attention groups of every KV cache group, in its order.
            kv_cache_config: the KV cache the groups belong to.
            for_capture: whether a FULL graph is captured over the result.
            ubatch_idx: the micro-batch whose builders are used.
        """
