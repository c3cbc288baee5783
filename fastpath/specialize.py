"""``specialize``: a model state's subclass that replays recorded metadata builds.

The seam is ``_build_attn_metadata``, the part of ``prepare_attn`` whose host
values a graph key fixes. What ``prepare_attn`` does before and after it runs every
step; the build itself is recorded by ``capture_inner_cudagraphs`` and replayed by
FULL decode steps. Every other step builds as the base does.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from graphparity.fastpath.decode_batch import padded_decode_batch
from graphparity.fastpath.graph_key import GraphKey, graph_key
from graphparity.fastpath.metadata_graphs import (
    AttnMetadata,
    BuildFn,
    EagerReason,
    MetadataGraphs,
)
from graphparity.fastpath.recorders.protocol import Recorder
from graphparity.fastpath.replay_starts import KnownZeroReplayStarts
from graphparity.reference.attention import AttentionGroup, KVCacheConfig
from graphparity.reference.block_table import BlockTables
from graphparity.reference.input_batch import InputBatch, InputBuffers

_SEAM = (
    "prepare_attn",
    "_build_attn_metadata",
    "capture_inner_cudagraphs",
    "initialize_kv_cache",
    "max_model_len",
)


@dataclass(frozen=True)
class Specialization:
    """What a specialized state needs beyond its base's constructor arguments."""

    full_mode: object
    """The runner's ``CUDAGraphMode.FULL``; compared by identity every step."""
    make_recorder: Callable[[Any], Recorder]
    """Makes the recorder of a newly built state."""
    graph_keys: Callable[[Any], Sequence[GraphKey]]
    """The keys a state is to record, asked each time it records."""


def specialize(base: type[Any], specialization: Specialization) -> type[Any]:
    """The subclass of ``base`` that replays its recorded metadata builds.

    Its constructor takes what ``base``'s takes; ``graphs`` holds its recordings
    and counters.

    Raises:
        TypeError: ``base`` lacks a method of the seam.
    """
    missing = [name for name in _SEAM if not hasattr(base, name)]
    if missing:
        raise TypeError(
            f"{base.__qualname__} lacks {', '.join(missing)}: only a model state that "
            "builds its metadata in _build_attn_metadata can be specialized."
        )
    bases: tuple[type[Any], ...] = (_SpecializedModelState, base)
    if hasattr(base, "_upload_replay_start"):
        bases = (_SpecializedModelState, KnownZeroReplayStarts, base)
    members = {
        "_specialization": specialization,
        "__doc__": f"{base.__qualname__} with recorded metadata builds.",
        "__module__": base.__module__,
    }
    return type(f"Specialized{base.__name__}", bases, members)


class _SpecializedModelState:
    """The methods that ``specialize`` puts before a base's own."""

    _specialization: Specialization
    max_model_len: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.graphs = MetadataGraphs(self._specialization.make_recorder(self))
        self._full_mode = self._specialization.full_mode

    def initialize_kv_cache(
        self, kv_cache_config: KVCacheConfig, block_tables: BlockTables
    ) -> None:
        """Adopt a newly allocated KV cache; recordings of the last one are dropped."""
        base: Any = super()
        base.initialize_kv_cache(kv_cache_config, block_tables)
        self.graphs.release()

    def capture_inner_cudagraphs(
        self,
        input_buffers: InputBuffers,
        block_tables: BlockTables,
        attn_groups: list[list[AttentionGroup]],
        kv_cache_config: KVCacheConfig,
    ) -> None:
        """Record the metadata build of every key, then capture what the base does."""

        def stage(key: GraphKey) -> BuildFn:
            return self._stage_build(
                padded_decode_batch(key, input_buffers, self.max_model_len),
                block_tables.get_dummy_block_tables(key.num_reqs_after_padding),
                block_tables.get_dummy_slot_mappings(key.num_tokens_after_padding),
                attn_groups,
                kv_cache_config,
            )

        self.graphs.record(self._specialization.graph_keys(self), stage)
        base: Any = super()
        base.capture_inner_cudagraphs(
            input_buffers, block_tables, attn_groups, kv_cache_config
        )

    def _build_attn_metadata(
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
        """The step's metadata: replayed for a recorded decode step, else built."""
        reason = self._eager_reason(
            input_batch, cudagraph_mode, for_capture, ubatch_idx
        )
        if reason is None:
            attn_metadata = self.graphs.replay(graph_key(input_batch))
            if attn_metadata is not None:
                return attn_metadata
        else:
            self.graphs.count_eager(reason)
        base: Any = super()
        built: AttnMetadata = base._build_attn_metadata(
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

    def _eager_reason(
        self,
        input_batch: InputBatch,
        cudagraph_mode: object,
        for_capture: bool,
        ubatch_idx: int,
    ) -> EagerReason | None:
        """Why this step must build eagerly whatever is recorded; None if it need not.

        A FULL step that is none of these has uniform query lengths: the runner's
        dispatch serves no other step by a FULL decode graph.
        """
        if for_capture:
            return EagerReason.DUMMY
        if cudagraph_mode is not self._full_mode:
            return EagerReason.NOT_FULL
        if input_batch.has_prefill:
            return EagerReason.PREFILL
        if input_batch.max_query_len is not None:
            return EagerReason.VARLEN
        return EagerReason.MICROBATCH if ubatch_idx else None

    def _stage_build(self, input_batch: InputBatch, *step: Any) -> BuildFn:
        """Run what ``prepare_attn`` does around the build; returns the build.

        The base's ``prepare_attn`` decides what the build is called with, so it is
        called with a build in its place that keeps its arguments.
        """
        base: Any = super()
        staged: list[BuildFn] = []

        def keep(*args: Any, **kwargs: Any) -> AttnMetadata:
            staged.append(partial(base._build_attn_metadata, *args, **kwargs))
            return {}

        vars(self)["_build_attn_metadata"] = keep
        try:
            base.prepare_attn(input_batch, self._full_mode, *step)
        finally:
            del vars(self)["_build_attn_metadata"]
        (build,) = staged
        return build
