"""The reference model state: DeepSeek-V4.1's decode semantics in plain loops.

Place: the oracle a fast state is compared with, step by step. From vLLM's
``models/deepseek_v41/nvidia/model_state.py``, ``v1/worker/gpu/model_states/
default.py`` and ``nvidia/specialized_decode/runtime/model_state.py`` (the upload
rule); decoder-side replay layers and
context parallelism are outside it.
Invariant: three things outlive a step: ``lookback_token_ids``, ``replay_start``
and the replay starts of the request table.
"""

import dataclasses
from typing import Any

import torch

from graphparity.reference.attention import AttentionGroup, KVCacheConfig
from graphparity.reference.attn_metadata import build_attn_metadata
from graphparity.reference.block_table import PAD_SLOT_ID
from graphparity.reference.input_batch import InputBatch
from graphparity.reference.interface import (
    CUDAGraphMode,
    ModelState,
    NewRequestData,
    RequestState,
)


@dataclasses.dataclass(frozen=True)
class DecodeConfig:
    """Sizes of a model state; lengths count tokens.

    ``decode_query_len`` is the longest decode query: 1 + speculative tokens.
    """

    max_num_reqs: int
    max_num_tokens: int
    max_model_len: int
    token_lookback_depth: int
    device: torch.device
    decode_query_len: int = 1


class ReferenceModelState(ModelState):
    """Builds every step's metadata eagerly.

    ``initialize_kv_cache`` and ``capture_inner_cudagraphs`` do nothing: it keeps
    nothing of the KV cache and captures nothing.

    ``lookback_token_ids``: ``[max_num_reqs, depth]`` int32 on the device, or None
    at depth 0. ``replay_start``: ``[max_num_reqs]`` int32 on the device.
    ``num_replay_start_uploads``: writes to ``replay_start`` so far.
    """

    def __init__(self, config: DecodeConfig) -> None:
        self.config = config
        self.lookback_token_ids: torch.Tensor | None = None
        if config.token_lookback_depth > 0:
            self.lookback_token_ids = torch.full(
                (config.max_num_reqs, config.token_lookback_depth),
                -1,
                dtype=torch.int32,
                device=config.device,
            )
        self.replay_start = torch.zeros(
            config.max_num_reqs, dtype=torch.int32, device=config.device
        )
        self.num_replay_start_uploads = 0
        self._replay_start_by_req = [0] * config.max_num_reqs
        self._num_known_zero_rows = 0

    @property
    def max_model_len(self) -> int:
        """Longest sequence, in tokens."""
        return self.config.max_model_len

    def add_request(self, req_index: int, new_req_data: NewRequestData) -> None:
        """Remember the request's replay start under its row."""
        self._replay_start_by_req[req_index] = int(new_req_data.replay_start)

    def prepare_inputs(
        self, input_batch: InputBatch, req_states: RequestState
    ) -> dict[str, Any]:
        """Refill ``lookback_token_ids`` and return it; ``{}`` at depth 0.

        Row ``i`` holds the ids before request ``i``'s first scheduled position,
        newest first, -1 before the start; rows of no or empty requests are -1.
        """
        if self.lookback_token_ids is None:
            return {}
        starts = input_batch.query_start_loc.tolist()
        req_indices = input_batch.idx_mapping.tolist()
        self.lookback_token_ids[:] = -1
        for row, req_index in enumerate(req_indices):
            if starts[row + 1] == starts[row]:
                continue
            token_ids = req_states.all_token_ids.gpu[req_index].tolist()
            num_computed = int(input_batch.positions[starts[row]])
            for back in range(min(self.config.token_lookback_depth, num_computed)):
                token_id = token_ids[num_computed - 1 - back]
                self.lookback_token_ids[row, back] = token_id
        return {"lookback_token_ids": self.lookback_token_ids}

    def prepare_dummy_inputs(self, num_reqs: int, num_tokens: int) -> dict[str, Any]:
        """Fill ``lookback_token_ids`` with -1 and return it; ``{}`` at depth 0."""
        if self.lookback_token_ids is None:
            return {}
        self.lookback_token_ids[:] = -1
        return {"lookback_token_ids": self.lookback_token_ids}

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
        """Stage the replay starts, pad replayed slots, build the groups in order.

        Writes ``replay_start`` and, in place, ``slot_mappings``. Outside FULL
        mode a step that is no uniform decode step returns ``{}``: prefill
        metadata is outside the reference.

        Raises:
            ValueError: a FULL step is not a uniform decode step.
        """
        specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
        window = max((spec.prefix_replay_tokens for spec in specs), default=0)
        replay_start: torch.Tensor | None = None
        if window > 0:
            starts = self._replay_starts(input_batch)
            replay_start = self._upload_replay_start(starts)
            cacheable = [i for i, spec in enumerate(specs) if spec.prefix_cacheable]
            _pad_replayed_slots(input_batch, slot_mappings, cacheable, starts, window)
        full = cudagraph_mode is CUDAGraphMode.FULL
        if not full and not self._is_decode_step(input_batch):
            return {}
        return build_attn_metadata(
            input_batch,
            block_tables,
            slot_mappings,
            attn_groups,
            padded=full,
            max_seq_len=self.max_model_len if for_capture else None,
            replay_start=replay_start,
            for_capture=for_capture,
            ubatch_idx=ubatch_idx,
        )

    def _replay_starts(self, input_batch: InputBatch) -> list[int]:
        """Only prefills carry a start: decodes sit above the hit."""
        req_indices = input_batch.idx_mapping_np.tolist()[: input_batch.num_reqs]
        return [
            self._replay_start_by_req[req_index]
            if input_batch.is_prefilling_np[row]
            else 0
            for row, req_index in enumerate(req_indices)
        ]

    def _upload_replay_start(self, starts: list[int]) -> torch.Tensor:
        """Write the starts unless the leading rows are known to hold zeros."""
        if any(starts) or len(starts) > self._num_known_zero_rows:
            values = torch.tensor(starts, dtype=torch.int32)
            self.replay_start[: len(starts)] = values
            self.num_replay_start_uploads += 1
            self._num_known_zero_rows = 0 if any(starts) else len(starts)
        return self.replay_start[: len(starts)]

    def _is_decode_step(self, input_batch: InputBatch) -> bool:
        query_lens = set(input_batch.num_scheduled_tokens.tolist())
        return (
            input_batch.decode_graph_eligible
            and len(query_lens) == 1
            and max(query_lens) <= self.config.decode_query_len
        )


def _pad_replayed_slots(
    input_batch: InputBatch,
    slot_mappings: torch.Tensor,
    cacheable_groups: list[int],
    starts: list[int],
    window: int,
) -> None:
    """Replayed tokens rebuild window KV only: the cached KV stays as it is."""
    query_start_loc = input_batch.query_start_loc.tolist()
    for row, start in enumerate(starts):
        if start == 0:
            continue
        for token in range(query_start_loc[row], query_start_loc[row + 1]):
            if start <= int(input_batch.positions[token]) < start + window:
                for group in cacheable_groups:
                    slot_mappings[group, token] = PAD_SLOT_ID
