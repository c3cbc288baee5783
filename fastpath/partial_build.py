"""Partial recording: the groups judged recordable are replayed, the others built.

A judge says of every KV-cache group whether its build may be recorded. A replayed
step launches the recording of the accepted groups, builds the refused ones eagerly,
and returns both in the layer order of the serial build.

Groups see each other in two ways only. They share one token-to-request map, built by
the first that needs it: an eager group builds a map of its own, with equal values.
And they may share a block table, which a builder may clamp in place: those stay
together, so that their order is the serial build's.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch

from graphparity.fastpath.graph_key import GraphKey
from graphparity.fastpath.metadata_graphs import (
    AttnMetadata,
    EagerReason,
    MetadataGraphs,
)
from graphparity.reference.attention import AttentionGroup, KVCacheConfig
from graphparity.reference.block_table import BlockTables
from graphparity.reference.input_batch import InputBatch

logger = logging.getLogger(__name__)

AttnGroups = list[list[AttentionGroup]]
"""[num_kv_cache_groups] the attention groups of each; a masked group has none."""
JudgeGroups = Callable[[Any, AttnGroups], Mapping[int, bool]]
"""Says of a state's KV-cache groups, by index, which may be recorded."""


class GroupSplit(NamedTuple):
    """The KV-cache groups of a state, split into recorded and eager ones."""

    recorded: AttnGroups
    eager: AttnGroups
    refused: tuple[int, ...]
    """The indices of the eager groups."""
    layer_order: tuple[str, ...]
    """Every layer, in the order of the serial build."""

    def merge(self, recorded: AttnMetadata, built: AttnMetadata) -> AttnMetadata:
        """The metadata of both parts, in serial order."""
        return {
            name: recorded[name] if name in recorded else built[name]
            for name in self.layer_order
        }


def split_groups(
    attn_groups: AttnGroups,
    recordable: Mapping[int, bool],
    block_tables: Sequence[torch.Tensor],
) -> GroupSplit:
    """Split by the judge's word; a refused group takes with it every group over the
    same block table.

    Raises:
        ValueError: the judge said nothing of some group.
    """
    used = [index for index, groups in enumerate(attn_groups) if groups]
    unjudged = [index for index in used if index not in recordable]
    if unjudged:
        raise ValueError(
            f"the judge says nothing of KV-cache groups {unjudged}, which have layers; "
            f"it judged {sorted(recordable)}: judge every group."
        )
    refused_tables = {
        block_tables[index].data_ptr() for index in used if not recordable[index]
    }
    accepted = {
        index for index in used if block_tables[index].data_ptr() not in refused_tables
    }
    refused = [index for index in used if index not in accepted]
    return GroupSplit(
        recorded=masked(attn_groups, accepted),
        eager=masked(attn_groups, refused),
        refused=tuple(refused),
        layer_order=tuple(
            name
            for groups in attn_groups
            for group in groups
            for name in group.layer_names
        ),
    )


def masked(attn_groups: AttnGroups, kept: Collection[int]) -> AttnGroups:
    """The groups of the indices ``kept``, the others without layers."""
    return [groups if index in kept else [] for index, groups in enumerate(attn_groups)]


class PartlyRecorded:
    """Mixed in before a specialized state whose ``Specialization`` names a judge."""

    graphs: MetadataGraphs
    _specialization: Any
    _split: GroupSplit
    _complete_replay: Callable[..., AttnMetadata] | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.eager_groups: Counter[int] = Counter()
        """KV-cache group index -> replayed steps that built it eagerly."""

    def _keys_and_groups(
        self, attn_groups: AttnGroups, block_tables: BlockTables
    ) -> tuple[Sequence[GraphKey], AttnGroups]:
        """Have the groups judged; record the accepted ones, no key if there is none."""
        base: Any = super()
        keys, _ = base._keys_and_groups(attn_groups, block_tables)
        recordable = self._specialization.judge_groups(self, attn_groups)
        tables = block_tables.get_dummy_block_tables(1)
        split = split_groups(attn_groups, recordable, tables)
        self._split = split
        for index in split.refused:
            logger.warning(
                "KV-cache group %d (%s) is built eagerly in every step: %s.",
                index,
                ", ".join(_layer_names(split.eager[index])),
                "its table is shared with a group that the judge refused"
                if recordable[index]
                else "the judge refused it",
            )
        self._complete_replay = self._build_refused if split.refused else None
        is_any_recorded = any(split.recorded)
        self.graphs.unrecorded_reason = (
            EagerReason.MISSING_RECORDING
            if is_any_recorded
            else EagerReason.CAPTURE_REFUSED
        )
        return (keys if is_any_recorded else ()), split.recorded

    def _build_refused(
        self,
        replayed: AttnMetadata,
        input_batch: InputBatch,
        cudagraph_mode: object,
        block_tables: tuple[torch.Tensor, ...],
        slot_mappings: torch.Tensor,
        kv_cache_config: KVCacheConfig,
        **kwargs: Any,
    ) -> AttnMetadata:
        """The metadata of a replayed step, with that of the refused groups built."""
        split, this = self._split, cast(Any, self)
        built = this._build_eagerly(
            input_batch,
            cudagraph_mode,
            block_tables,
            slot_mappings,
            split.eager,
            kv_cache_config,
            **kwargs,
        )
        self.eager_groups.update(split.refused)
        return split.merge(replayed, built)


def _layer_names(groups: Iterable[AttentionGroup]) -> list[str]:
    return [name for group in groups for name in group.layer_names]
