"""Replayed steps whose metadata is read on the host get metadata of their own.

A FULL graph reads buffers alone, so a replay hands out the captured objects, the same
at every step. Where a step's metadata has other readers, it is made anew instead
(``FreshMetadata``). Which keys have such readers is said once, after a capture; a key
whose metadata cannot be made anew is given up, and builds eagerly.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from graphparity.fastpath.fresh_metadata import FreshMetadata, NotExplainedError
from graphparity.fastpath.graph_key import GraphKey, graph_key
from graphparity.fastpath.metadata_graphs import AttnMetadata, MetadataGraphs
from graphparity.fastpath.proving.verdict import Field
from graphparity.reference.input_batch import InputBatch


class FreshReplays:
    """Mixed in before a specialized state."""

    graphs: MetadataGraphs
    _complete_replay: Callable[..., AttnMetadata] | None
    _fresh: Mapping[GraphKey, FreshMetadata] = {}
    """Key -> what makes its steps' metadata anew."""

    def make_anew(
        self, keys: Collection[GraphKey], fields: Mapping[str, Field]
    ) -> None:
        """Make the metadata of every replayed step of ``keys`` anew; called once after
        each capture.

        Args:
            keys: recorded keys whose metadata is read on the host.
            fields: what the prover found of the metadata's leaves, by path.
        """
        keys_of: dict[int, list[GraphKey]] = {}
        for key in keys:
            keys_of.setdefault(id(self.graphs.recordings[key]), []).append(key)
        fresh: dict[GraphKey, FreshMetadata] = {}
        for served in keys_of.values():
            metadata = self.graphs.recordings[served[0]].attn_metadata
            try:
                fresh |= dict.fromkeys(served, FreshMetadata(metadata, fields))
            except NotExplainedError as error:
                self.graphs.withdraw(served, error)
        self._fresh = fresh
        if fresh:
            self._complete_replay = self._anew(self._complete_replay)

    @property
    def num_made_anew(self) -> int:
        """Keys whose steps get metadata of their own."""
        return len(self._fresh)

    def _anew(
        self, complete: Callable[..., AttnMetadata] | None
    ) -> Callable[..., AttnMetadata]:
        """Completes a replayed step: its metadata made anew, then as before."""

        def completed(
            replayed: AttnMetadata, input_batch: InputBatch, *step: Any, **kwargs: Any
        ) -> AttnMetadata:
            made = self._made_anew(replayed, input_batch)
            if complete is None:
                return made
            return complete(made, input_batch, *step, **kwargs)

        return completed

    def _made_anew(
        self, replayed: AttnMetadata, input_batch: InputBatch
    ) -> AttnMetadata:
        fresh = self._fresh.get(graph_key(input_batch))
        if fresh is None:
            return replayed
        bounds = input_batch.seq_lens_cpu_upper_bound[: input_batch.num_reqs]
        return fresh.make(int(bounds.max()))
