"""``specialize``: a model state's subclass that replays recorded metadata builds.

The seam names the part of ``prepare_attn`` whose host values a graph key fixes, or
all of it. What ``prepare_attn`` does before and after it runs every step; the build
itself is recorded by ``capture_inner_cudagraphs`` and replayed by FULL decode steps.
Every other step builds as the base does.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from graphparity.fastpath.decode_batch import padded_decode_batch
from graphparity.fastpath.fork_decision import UNDECIDED, ForkDecision, Forking, decide
from graphparity.fastpath.forked_build import (
    BranchStaging,
    TiedGroups,
    branches_of,
    used_groups,
)
from graphparity.fastpath.graph_key import GraphKey, graph_key, largest_of_rungs
from graphparity.fastpath.hybrid_build import HybridBuild
from graphparity.fastpath.metadata_graphs import (
    AttnMetadata,
    BuildFn,
    EagerReason,
    MetadataGraphs,
)
from graphparity.fastpath.partial_build import JudgeGroups, PartlyRecorded
from graphparity.fastpath.recorders.protocol import Recorder
from graphparity.fastpath.replay_starts import KnownZeroReplayStarts
from graphparity.fastpath.seams import (
    BUILD_ATTN_METADATA,
    Seam,
    require_needs,
    require_seam,
)
from graphparity.reference.attention import AttentionGroup, KVCacheConfig
from graphparity.reference.block_table import BlockTables
from graphparity.reference.input_batch import InputBatch, InputBuffers


@dataclass(frozen=True)
class Specialization:
    """What a specialized state needs beyond its base's constructor arguments."""

    full_mode: object
    """The runner's ``CUDAGraphMode.FULL``; compared by identity every step."""
    make_recorder: Callable[[Any], Recorder]
    """Makes the recorder of a newly built state."""
    graph_keys: Callable[[Any], Sequence[GraphKey]]
    """The keys a state is to record, asked each time it records."""
    keys_padded_for_other_ranks: Callable[[Any], Sequence[GraphKey]] = lambda state: ()
    """Further keys of data parallelism, of the rungs of ``graph_keys``; they are left
    eager unless one recording serves a rung, for they are many."""
    seam: Seam = BUILD_ATTN_METADATA
    """What of a step is recorded."""
    judge_groups: JudgeGroups | None = None
    """Says which KV-cache groups may be recorded, asked each time a state records; the
    others are built eagerly in every step. None records all groups."""
    shares_rungs: Callable[[Any], bool] = lambda state: False
    """Whether what a state records was shown to build alike for all keys of a rung,
    asked after the judge: one recording then serves them all."""
    forking: Forking = Forking.NEVER
    """Whether recorded groups may build as concurrent branches."""
    tied_groups: TiedGroups = lambda state, attn_groups: ()
    """Says which groups must share a branch, asked after the judge if builds may fork;
    those over one block table do anyway."""


def specialize(base: type[Any], specialization: Specialization) -> type[Any]:
    """The subclass of ``base`` that replays its recorded metadata builds.

    Its constructor takes what ``base``'s takes; ``graphs`` holds its recordings
    and counters.

    Raises:
        TypeError: ``base`` lacks a method of the seam, or its ``prepare_attn`` is
            not the one that the seam fits.
    """
    require_seam(base, specialization.seam)
    bases: list[type[Any]] = [_SpecializedModelState, base]
    if specialization.seam.inner_call:
        bases.insert(0, HybridBuild)
    if hasattr(base, "_upload_replay_start"):
        bases.insert(-1, KnownZeroReplayStarts)
    if specialization.judge_groups is not None:
        bases.insert(0, PartlyRecorded)
    members = {
        "_specialization": specialization,
        "_may_skip_staging": specialization.seam.idle_staging is base.prepare_attn,
        specialization.seam.build_method: _SpecializedModelState._replay_or_build,
        "__doc__": f"{base.__qualname__} with recorded metadata builds.",
        "__module__": base.__module__,
    }
    return type(f"Specialized{base.__name__}", tuple(bases), members)


class _SpecializedModelState:
    """The methods that ``specialize`` puts before a base's own."""

    _specialization: Specialization
    max_model_len: int
    _complete_replay: Callable[..., AttnMetadata] | None = None
    """Adds to a replayed step's metadata what was not recorded; None if all was."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        require_needs(self, self._specialization.seam)
        self._allocate()
        self.graphs = MetadataGraphs(self._specialization.make_recorder(self))
        self.fork_decision = UNDECIDED
        self._full_mode = self._specialization.full_mode

    def _allocate(self) -> None:
        """Make what a recording reads and the base does not own: nothing."""

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
        keys, recorded_groups = self._keys_and_groups(attn_groups, block_tables)

        def stage(key: GraphKey, groups: list[list[AttentionGroup]]) -> BuildFn:
            return self._stage_build(
                padded_decode_batch(key, input_buffers, self.max_model_len),
                block_tables.get_dummy_block_tables(key.num_reqs_after_padding),
                block_tables.get_dummy_slot_mappings(key.num_tokens_after_padding),
                groups,
                kv_cache_config,
            )

        staging = BranchStaging(self.graphs.recorder, stage, recorded_groups)
        self.fork_decision = self._decide_to_fork(
            keys, staging, recorded_groups, block_tables
        )
        branches = self.fork_decision.branches

        def staged(key: GraphKey) -> BuildFn:
            return staging.build(key, branches)

        padded = self._specialization.keys_padded_for_other_ranks(self) if keys else ()
        if self._specialization.shares_rungs(self):
            self.graphs.record(largest_of_rungs([*keys, *padded]), staged)
        else:
            self.graphs.record({key: key for key in keys}, staged, left_eager=padded)
        base: Any = super()
        base.capture_inner_cudagraphs(
            input_buffers, block_tables, attn_groups, kv_cache_config
        )

    def _keys_and_groups(
        self, attn_groups: list[list[AttentionGroup]], block_tables: BlockTables
    ) -> tuple[Sequence[GraphKey], list[list[AttentionGroup]]]:
        """What to record: every key, of all groups."""
        return self._specialization.graph_keys(self), attn_groups

    def _decide_to_fork(
        self,
        keys: Sequence[GraphKey],
        staging: BranchStaging,
        recorded_groups: list[list[AttentionGroup]],
        block_tables: BlockTables,
    ) -> ForkDecision:
        """In which branches to record, by the builds of the largest key."""
        if not keys:
            return UNDECIDED
        specialization = self._specialization
        if specialization.forking is Forking.NEVER:
            return ForkDecision((used_groups(recorded_groups),), "not asked for")
        ties = specialization.tied_groups(self, recorded_groups)
        tables = block_tables.get_dummy_block_tables(1)
        largest = max(keys, key=lambda key: key[::-1])
        return decide(
            specialization.forking,
            self.graphs.recorder,
            branches_of(recorded_groups, tables, ties),
            lambda branches: staging.build(largest, branches),
        )

    def _replay_or_build(
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
        """The step's metadata: replayed for a recorded decode step, else built.

        A FULL step that is none of what ``_eager_reason`` names has uniform query
        lengths: the runner's dispatch serves no other step by a FULL decode graph.
        Written out here once more are its condition, the key as a bare tuple, which
        finds a ``GraphKey``, and ``MetadataGraphs.replay``: between the other work of
        a step, where nothing is cached, a call of each costs about a microsecond.
        """
        if (
            cudagraph_mode is self._full_mode
            and not for_capture
            and not input_batch.has_prefill
            and input_batch.max_query_len is None
            and not ubatch_idx
        ):
            recording = self.graphs.recording_of(
                (
                    input_batch.num_reqs,
                    input_batch.num_reqs_after_padding,
                    input_batch.num_tokens,
                    input_batch.num_tokens_after_padding,
                )
            )
            if recording is not None:
                if recording.launch is not None:
                    recording.launch()
                self.graphs.num_replayed += 1
                if self._complete_replay is None:
                    return recording.attn_metadata
                return self._complete_replay(
                    recording.attn_metadata,
                    input_batch,
                    cudagraph_mode,
                    block_tables,
                    slot_mappings,
                    kv_cache_config,
                    **kwargs,
                )
        self._count_eager(input_batch, cudagraph_mode, for_capture, ubatch_idx)
        return self._build_eagerly(
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

    def _count_eager(self, input_batch: InputBatch, *step: Any) -> None:
        """Count a step that no recording served, under the reason why."""
        reason = self._eager_reason(input_batch, *step)
        if reason is None:
            self.graphs.count_unrecorded(graph_key(input_batch))
        else:
            self.graphs.count_eager(reason)

    def _build_eagerly(self, *step: Any, **kwargs: Any) -> AttnMetadata:
        """The base's own build."""
        build = getattr(super(), self._specialization.seam.build_method)
        built: AttnMetadata = build(*step, **kwargs)
        return built

    def _eager_reason(
        self,
        input_batch: InputBatch,
        cudagraph_mode: object,
        for_capture: bool,
        ubatch_idx: int,
    ) -> EagerReason | None:
        """Why a step builds eagerly whatever is recorded; None if it need not."""
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
        called with a build in its place that keeps its arguments, and without replays.
        Where it is the build itself, nothing is around it.
        """
        build_method = self._specialization.seam.build_method
        staged: list[BuildFn] = []

        def keep(*args: Any, **kwargs: Any) -> AttnMetadata:
            staged.append(partial(self._build_eagerly, *args, **kwargs))
            return {}

        staging = {build_method: keep, "_eager_reason": lambda *step: EagerReason.DUMMY}
        vars(self).update(staging)
        try:
            this: Any = self
            this.prepare_attn(input_batch, self._full_mode, *step)
        finally:
            for name in staging:
                del vars(self)[name]
        if len(staged) != 1:
            raise TypeError(
                f"{type(self).__qualname__}.prepare_attn called {build_method} "
                f"{len(staged)} times for one FULL decode step: a state fits this seam "
                "if it calls it once."
            )
        return staged[0]
