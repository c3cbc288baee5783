"""Recordings of attention-metadata builds by graph key, and their replay.

A recording is one key's captured build and the metadata captured with it: the
metadata's tensors lie in buffers that the builders own, so replaying the
captured device work is all a step of that key needs. A step without a recording
builds eagerly, and is counted under the reason why.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from graphparity.fastpath.graph_key import GraphKey
from graphparity.fastpath.recorders.protocol import (
    CaptureError,
    RecordedGraph,
    Recorder,
)

logger = logging.getLogger(__name__)

AttnMetadata = dict[str, Any]
"""Layer name -> that layer's metadata object."""
BuildFn = Callable[[], AttnMetadata]


class EagerReason(Enum):
    """Why a step built its metadata eagerly."""

    NOT_FULL = "the step is not FULL"
    DUMMY = "the step is a dummy (for_capture)"
    PREFILL = "the FULL step carries prefill rows"
    VARLEN = "the FULL step's query lengths are only bounded (max_query_len is set)"
    MICROBATCH = "the step is a microbatch"
    CAPTURE_REFUSED = "the key's build cannot be recorded"
    LARGER_RANK = "the step is padded for a larger rank, and no recording serves a rung"
    MISSING_RECORDING = "the key has no recording"


class Recording(NamedTuple):
    """One key's recorded build."""

    graph: RecordedGraph
    attn_metadata: AttnMetadata
    launch: Callable[[], None] | None
    """Replays the graph; None for a build without device work."""


class MetadataGraphs:
    """The recordings of a model state, and what its steps did with them."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._recordings: dict[tuple[int, int, int, int], Recording] = {}
        self.recording_of = self._recordings.get
        """The recording of a ``GraphKey``'s four numbers; None if there is none."""
        self._refusals: dict[GraphKey, Exception] = {}
        self.left_eager: frozenset[GraphKey] = frozenset()
        """Keys of steps padded for a larger rank that are not recorded."""
        self.num_replayed = 0
        self.eager_steps: Counter[EagerReason] = Counter()
        self.unrecorded_reason = EagerReason.MISSING_RECORDING
        """Why a key is neither recorded nor refused; only a missing recording is
        warned of."""

    @property
    def recordings(self) -> Mapping[GraphKey, Recording]:
        """The recordings by key, read-only."""
        return MappingProxyType(cast(dict[GraphKey, Recording], self._recordings))

    @property
    def num_graphs(self) -> int:
        """Recorded graphs; keys that build alike share one."""
        return len({id(recording.graph) for recording in self._recordings.values()})

    @property
    def refusals(self) -> Mapping[GraphKey, Exception]:
        """Why a key's build could not be recorded, or not be kept, read-only."""
        return MappingProxyType(self._refusals)

    def record(
        self,
        recorded_as: Mapping[GraphKey, GraphKey],
        stage: Callable[[GraphKey], BuildFn],
        left_eager: Collection[GraphKey] = (),
    ) -> None:
        """Record the build of every key, in the order given.

        Args:
            recorded_as: key -> the key whose recording serves it, itself or one that
                was shown to build alike; former recordings are dropped.
            stage: prepares a dummy step of a key and returns its build.
            left_eager: keys of steps padded for a larger rank that are not recorded.

        All keys are warmed up before the first is captured, so one
        synchronisation serves them all. A key that cannot be recorded stays
        eager, and is named in ``refusals`` and in the log.
        """
        self.release()
        self.left_eager = frozenset(left_eager)
        keys = tuple(dict.fromkeys(recorded_as.values()))
        for key in keys:
            self.recorder.warm_up(stage(key))
        self.recorder.synchronize()
        for key in keys:
            self._capture(key, stage(key))
        for key, recorded in recorded_as.items():
            if recorded in self._recordings:
                self._recordings[key] = self._recordings[recorded]
            else:
                self._refusals[key] = self._refusals[recorded]
        for key, num_keys in Counter(recorded_as.values()).items():
            if key in self._refusals and num_keys > 1:
                logger.warning("%d keys stay eager with %s.", num_keys - 1, key)

    def replay(self, key: tuple[int, int, int, int]) -> AttnMetadata | None:
        """Refresh the builders' buffers by replaying the build of ``key``.

        Args:
            key: the four numbers of a ``GraphKey``.

        Returns the metadata that reads those buffers; None if the key has no
        recording.
        """
        recording = self.recording_of(key)
        if recording is None:
            return None
        if recording.launch is not None:
            recording.launch()
        self.num_replayed += 1
        return recording.attn_metadata

    def withdraw(self, keys: Collection[GraphKey], error: Exception) -> None:
        """Give up the recordings of ``keys``, which are refused from now on; a graph
        that serves other keys is kept.
        """
        given_up = {id(it): it for it in map(self._recordings.pop, keys)}
        kept = {id(recording.graph) for recording in self._recordings.values()}
        for recording in given_up.values():
            if id(recording.graph) not in kept:
                recording.graph.release()
        self._refusals |= dict.fromkeys(keys, error)
        logger.warning("%s stay eager: %s", ", ".join(map(str, keys)), error)

    def count_eager(self, reason: EagerReason) -> None:
        """Count one step that built its metadata eagerly."""
        self.eager_steps[reason] += 1

    def count_unrecorded(self, key: GraphKey) -> None:
        """Count one step that built eagerly because ``key`` has no recording; the first
        one whose recording is missing is warned of.
        """
        reason = self.unrecorded_reason
        if key in self._refusals:
            reason = EagerReason.CAPTURE_REFUSED
        elif key in self.left_eager:
            reason = EagerReason.LARGER_RANK
        is_missing = reason is EagerReason.MISSING_RECORDING
        if is_missing and not self.eager_steps[reason]:
            logger.warning(
                "a FULL decode step of %s has no recorded metadata build and builds "
                "eagerly; recorded keys: %d. Counted as %s from here on.",
                key,
                len(self._recordings),
                EagerReason.MISSING_RECORDING.name,
            )
        self.count_eager(reason)

    def release(self) -> None:
        """Drop every recording: their steps build eagerly until recorded again."""
        for recording in self._recordings.values():
            recording.graph.release()
        self._recordings.clear()
        self._refusals.clear()
        self.left_eager = frozenset()

    def _capture(self, key: GraphKey, build: BuildFn) -> None:
        try:
            graph, attn_metadata = self.recorder.capture(build)
        except CaptureError as error:
            self._refusals[key] = error
            logger.warning("%s stays eager: %s", key, error)
            return
        launch = graph.replay if graph.num_nodes else None
        self._recordings[key] = Recording(graph, attn_metadata, launch)
