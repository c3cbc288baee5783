"""No staging of replay starts that the device buffer is known to hold.

Under sliding-window bounded replay a model state uploads each batch's replay
starts, although those of a decode step are all zero. The upload is skipped while
the buffer's leading rows are known to hold zeros, and comes back after any step
that uploaded a non-zero. With known zeros nothing else is left to stage either: no
slot is padded, and a decode step's ``prepare_attn`` is its replay alone.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from graphparity.fastpath.graph_key import graph_key
from graphparity.fastpath.metadata_graphs import AttnMetadata
from graphparity.reference.attention import AttentionGroup, KVCacheConfig
from graphparity.reference.input_batch import InputBatch


class KnownZeroReplayStarts:
    """Mixed in before a state that has ``_upload_replay_start`` (vLLM
    ``models/deepseek_v41/nvidia/model_state.py``), behind the specialized one.

    Invariant: the first ``_num_zero_replay_starts`` rows of ``_replay_start``
    hold zeros on the device. Besides uploads, only captures write the buffer,
    and they write zeros.
    """

    _num_zero_replay_starts = 0
    _may_skip_staging = False
    """Whether the base's ``prepare_attn`` is known to stage nothing else."""
    decoder_replay_layers: Any = None
    _replay_start: torch.Tensor  # [max_num_reqs], int32, device

    def prepare_attn(
        self,
        input_batch: InputBatch,
        cudagraph_mode: object,
        block_tables: tuple[torch.Tensor, ...],
        slot_mappings: torch.Tensor,
        attn_groups: list[list[AttentionGroup]],
        kv_cache_config: KVCacheConfig,
        for_capture: bool = False,
        ubatch_idx: int = 0,
        **kwargs: Any,
    ) -> AttnMetadata:
        """As the base's; without staging where that does nothing."""
        this: Any = self
        if (
            input_batch.num_reqs <= self._num_zero_replay_starts
            and self._may_skip_staging
            and this._complete_replay is None
            and not this._eager_reason(
                input_batch, cudagraph_mode, for_capture, ubatch_idx
            )
        ):
            key = graph_key(input_batch)
            attn_metadata: AttnMetadata | None = this.graphs.replay(key)
            if attn_metadata is not None:
                if self.decoder_replay_layers is not None:
                    # A FULL step has no replay batch, and the base says so there.
                    this._prepare_replay_batch(
                        input_batch,
                        cudagraph_mode,
                        block_tables,
                        slot_mappings,
                        attn_groups,
                        kv_cache_config,
                        self._replay_start,
                    )
                return attn_metadata
        base: Any = super()
        built: AttnMetadata = base.prepare_attn(
            input_batch,
            cudagraph_mode,
            block_tables,
            slot_mappings,
            attn_groups,
            kv_cache_config,
            for_capture=for_capture,
            ubatch_idx=ubatch_idx,
            **kwargs,
        )
        return built

    def _upload_replay_start(
        self, values: npt.NDArray[np.int32], num_reqs: int
    ) -> torch.Tensor:
        """The batch's replay starts on the device.

        Args:
            values: [num_reqs] replay starts in tokens, on the host.
            num_reqs: the batch's requests.
        """
        has_replay = bool(values.any())
        if has_replay or num_reqs > self._num_zero_replay_starts:
            base: Any = super()
            base._upload_replay_start(values, num_reqs)
            self._num_zero_replay_starts = 0 if has_replay else num_reqs
        return self._replay_start[:num_reqs]
