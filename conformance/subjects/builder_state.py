"""A model state of one attention group, whose build is one builder's ``build``.

Follows vLLM's ``DefaultModelState.prepare_attn`` and ``build_attn_metadata``
(``v1/worker/gpu/model_states/default.py``, ``v1/worker/gpu/attn_utils.py``): sizes are
padded in FULL steps, and ``max_seq_len`` is a host bound. A key fixes every host value
but the bounds, so that all of ``prepare_attn`` may be recorded.
"""

from typing import Any

import torch

from graphparity.reference.attention import AttentionGroup, KVCacheConfig
from graphparity.reference.input_batch import InputBatch
from graphparity.reference.interface import CUDAGraphMode, ModelState, RequestState

LAYER_NAME = "attn"


class BuilderState(ModelState):
    """The eager decode metadata of one builder.

    Args:
        builder: has ``build(common_prefix_len, common_attn_metadata)``.
        max_model_len: the longest sequence, in tokens.
        common_attn_metadata_cls: what the builder is handed; vLLM's class or one with
            its fields.
    """

    def __init__(
        self, builder: Any, max_model_len: int, common_attn_metadata_cls: type[Any]
    ) -> None:
        self.builder = builder
        self._max_model_len = max_model_len
        self._common_attn_metadata_cls = common_attn_metadata_cls

    @property
    def max_model_len(self) -> int:
        """The longest sequence, in tokens."""
        return self._max_model_len

    def prepare_inputs(
        self, input_batch: InputBatch, req_states: RequestState
    ) -> dict[str, Any]:
        """There is no model."""
        return {}

    def prepare_dummy_inputs(self, num_reqs: int, num_tokens: int) -> dict[str, Any]:
        """There is no model."""
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
        """What the builder makes of the step; a capture's, if it has such a method."""
        common = self._common_attn_metadata(
            input_batch,
            cudagraph_mode is CUDAGraphMode.FULL,
            block_tables[0],
            slot_mappings[0],
            for_capture,
        )
        if for_capture and hasattr(self.builder, "build_for_cudagraph_capture"):
            return {LAYER_NAME: self.builder.build_for_cudagraph_capture(common)}
        return {LAYER_NAME: self.builder.build(0, common)}

    def _common_attn_metadata(
        self,
        batch: InputBatch,
        is_full: bool,
        block_table: torch.Tensor,
        slot_mapping: torch.Tensor,
        for_capture: bool,
    ) -> Any:
        num_reqs = batch.num_reqs_after_padding if is_full else batch.num_reqs
        num_tokens = batch.num_tokens_after_padding if is_full else batch.num_tokens
        bounds = batch.seq_lens_cpu_upper_bound[:num_reqs]
        return self._common_attn_metadata_cls(
            query_start_loc=batch.query_start_loc[: num_reqs + 1],
            query_start_loc_cpu=torch.from_numpy(
                batch.query_start_loc_np[: num_reqs + 1]
            ),
            seq_lens=batch.seq_lens[:num_reqs],
            num_reqs=num_reqs,
            num_actual_tokens=num_tokens,
            max_query_len=batch.max_query_len or int(batch.num_scheduled_tokens.max()),
            max_seq_len=self.max_model_len if for_capture else int(bounds.max()),
            block_table_tensor=block_table[:num_reqs],
            slot_mapping=slot_mapping[:num_tokens],
            positions=batch.positions[:num_tokens],
            is_prefilling=torch.from_numpy(batch.is_prefilling_np),
            seq_lens_cpu_upper_bound=bounds,
        )
