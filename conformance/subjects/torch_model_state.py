"""A small eager model state in plain torch operations, with vLLM's seam.

It has two KV-cache groups of DeepSeek-V4.1's decode (the compressor ring and the
sliding window under bounded replay), owns their builders, and stands where a vLLM
state would, on machines without vLLM.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from graphparity.conformance.subjects.torch_builders import (
    TorchCompressorBuilder,
    TorchSlidingWindowBuilder,
)
from graphparity.reference.attention import AttentionGroup, KVCacheConfig
from graphparity.reference.input_batch import InputBatch
from graphparity.reference.interface import (
    CUDAGraphMode,
    ModelState,
    NewRequestData,
    RequestState,
)
from graphparity.reference.model_state import DecodeConfig


class TorchModelState(ModelState):
    """Eager decode metadata; ``_build_attn_metadata`` is the part to record."""

    def __init__(
        self, config: DecodeConfig, *, capacity: int, window: int, block_size: int
    ) -> None:
        self.config = config
        self.compressor = TorchCompressorBuilder(
            capacity, config.max_num_tokens, config.device
        )
        self.sliding_window = TorchSlidingWindowBuilder(
            window, block_size, config.max_num_tokens, config.device
        )
        self._replay_start_np = np.zeros(config.max_num_reqs, dtype=np.int32)
        self._replay_start = torch.zeros(
            config.max_num_reqs, dtype=torch.int32, device=config.device
        )

    @property
    def max_model_len(self) -> int:
        """The longest sequence, in tokens."""
        return self.config.max_model_len

    def add_request(self, req_index: int, new_req_data: NewRequestData) -> None:
        """Remember the request's replay start."""
        self._replay_start_np[req_index] = new_req_data.replay_start

    def prepare_inputs(
        self, input_batch: InputBatch, req_states: RequestState
    ) -> dict[str, Any]:
        """The model takes no further inputs."""
        return {}

    def prepare_dummy_inputs(self, num_reqs: int, num_tokens: int) -> dict[str, Any]:
        """The model takes no further inputs."""
        return {}

    def prepare_attn(
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
        """Upload the replay starts and build the metadata.

        No group is prefix-cacheable, so no replayed slot is padded.
        """
        num_reqs = input_batch.num_reqs
        starts = np.where(
            input_batch.is_prefilling_np,
            self._replay_start_np[input_batch.idx_mapping_np],
            0,
        ).astype(np.int32)
        replay_start = self._upload_replay_start(starts, num_reqs)
        return self._build_attn_metadata(
            input_batch,
            cudagraph_mode,
            block_tables,
            slot_mappings,
            attn_groups,
            kv_cache_config,
            for_capture=for_capture,
            ubatch_idx=ubatch_idx,
            replay_start=replay_start,
        )

    def _upload_replay_start(
        self, values: npt.NDArray[np.int32], num_reqs: int
    ) -> torch.Tensor:
        """Copy [num_reqs] replay starts to their device buffer."""
        self._replay_start[:num_reqs] = torch.from_numpy(values)
        return self._replay_start[:num_reqs]

    def _build_attn_metadata(
        self,
        input_batch: InputBatch,
        cudagraph_mode: CUDAGraphMode,
        block_tables: tuple[torch.Tensor, ...],
        slot_mappings: torch.Tensor,
        attn_groups: list[list[AttentionGroup]],
        kv_cache_config: KVCacheConfig,
        for_capture: bool = False,
        ubatch_idx: int = 0,
        replay_start: torch.Tensor | None = None,
    ) -> dict[str, Any]:
        """The metadata of the groups that are not masked, padded in FULL steps; none
        for prompt chunks.
        """
        if input_batch.has_prefill:
            return {}
        full = cudagraph_mode is CUDAGraphMode.FULL
        num_reqs, num_tokens = input_batch.num_reqs, input_batch.num_tokens
        if full:
            num_reqs = input_batch.num_reqs_after_padding
            num_tokens = input_batch.num_tokens_after_padding
        attn_metadata: dict[str, Any] = {}
        token_to_req_indices: torch.Tensor | None = None
        if attn_groups[0]:
            compressor = self.compressor.build(
                input_batch, num_tokens, block_tables[0][:num_reqs]
            )
            token_to_req_indices = compressor.token_to_req_indices
            attn_metadata["compressor"] = compressor
        if attn_groups[1]:
            attn_metadata["sliding_window"] = self.sliding_window.build(
                input_batch,
                block_tables[1][:num_reqs],
                slot_mappings[1, :num_tokens],
                token_to_req_indices,
                None if for_capture else replay_start,
            )
        return attn_metadata
