"""All evidence that one pair of batches gives on a group's build."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from graphparity.fastpath.graph_key import GraphKey
from graphparity.fastpath.group_build import GroupBuild
from graphparity.fastpath.proving.field_log import FieldLog
from graphparity.fastpath.proving.findings import Finding, capture_refused
from graphparity.fastpath.proving.group_memory import memory_of, span_of
from graphparity.fastpath.proving.host_copies import stale_host_copies
from graphparity.fastpath.proving.host_fields import carries_bound, host_fields_equal
from graphparity.fastpath.proving.leaves import Leaf
from graphparity.fastpath.proving.node_checks import (
    host_nodes,
    same_but_for_own_pool,
    same_for_all_host_values,
)
from graphparity.fastpath.proving.recordings import Capture, Recordings
from graphparity.fastpath.proving.replay_checks import ReplayChecks, is_device_leaf
from graphparity.fastpath.proving.replays import replay_step
from graphparity.fastpath.proving.verdict import BatchPair, Check
from graphparity.fastpath.recorders.protocol import CaptureError
from graphparity.fastpath.runtime_batch import StepRows

_CHECK_ORDER = tuple(Check)


@dataclass
class GroupEvidence:
    """The evidence gathered on one group."""

    build: GroupBuild
    recordings: Recordings
    checks: Collection[Check]
    log: FieldLog = field(default_factory=FieldLog)
    in_place_inputs: set[str] = field(default_factory=set)
    nodes_per_key: dict[GraphKey, int] = field(default_factory=dict)
    _recorded: dict[StepRows, Capture] = field(default_factory=dict)

    def findings(self, key: GraphKey, pair: BatchPair) -> list[Finding]:
        """What speaks against recording ``key``'s build, in the order of the checks."""
        try:
            found = list(self._examine(key, pair))
        except CaptureError as error:
            found = [capture_refused(error)]
        asked = [self._located(it) for it in found if it.check in self.checks]
        return sorted(asked, key=lambda it: _CHECK_ORDER.index(it.check))

    def afresh(self) -> "GroupEvidence":
        """Over the same recordings, with nothing seen yet."""
        return GroupEvidence(
            self.build, self.recordings, self.checks, _recorded=self._recorded
        )

    def _located(self, finding: Finding) -> Finding:
        """The finding, at the builder's ``build`` where no operation has a place."""
        return replace(finding, location=finding.location or self.build.location)

    def _examine(self, key: GraphKey, pair: BatchPair) -> Iterator[Finding]:
        if pair.recorded not in self._recorded:
            yield from self._record(key, pair.recorded)
        recorded, staged = self._recorded[pair.recorded], self._capture(pair.replayed)
        is_bounded = carries_bound(recorded.leaves, staged.leaves)
        moved = self._moved(recorded, staged, is_bounded)
        if moved is not None:
            yield moved
        yield from self._replay(key, recorded, staged)

    def is_captured_alike(self, key: GraphKey, pair: BatchPair) -> bool:
        """Whether ``pair.replayed``, of another key, is captured as ``key``'s recording
        is: with equal operations, host values and places. Its longest sequence is as
        long, so not even a bound may differ.
        """
        try:
            if pair.recorded not in self._recorded:
                list(self._record(key, pair.recorded))
            self._recorded[pair.replayed] = self._capture(pair.replayed)
        except CaptureError:
            return False
        recorded, other = self._recorded[pair.recorded], self._recorded[pair.replayed]
        if self._moved(recorded, other, is_bounded=False) is not None:
            return False
        longest = max(pair.replayed.seq_lens)
        return self._same_leaves(recorded.leaves, other.leaves, longest)

    def _same_leaves(
        self, recorded: Mapping[str, Leaf], other: Mapping[str, Leaf], longest: int
    ) -> bool:
        spans = [span_of(tensor) for tensor in memory_of(self.build).values()]
        is_device = partial(is_device_leaf, spans=spans, pools=self.recordings.pools)
        log = FieldLog()
        found = host_fields_equal(
            recorded, other, is_device, log, is_worst_case=True, longest=longest
        )
        if list(found) or any(seen.exceeds for seen in log.leaves.values()):
            return False
        return all(
            leaf.place == other[path].place
            for path, leaf in recorded.items()
            if is_device(leaf)
        )

    def is_served(self, pair: BatchPair) -> bool:
        """Whether the recording of ``pair.recorded`` leaves what eager leaves on a
        batch of another key, which was just captured, alike: other operations might
        reach out of bounds.
        """
        recorded, staged = (self._recorded[it] for it in (pair.recorded, pair.replayed))
        found = list(self._replay(pair.replayed.key, recorded, staged))
        return not found and not any(
            seen.exceeds or seen.follows_bound for seen in self.log.leaves.values()
        )

    def _capture(self, rows: StepRows) -> Capture:
        self.recordings.warm_up(rows)
        return self.recordings.capture(rows, self.recordings.stage(rows))

    def _moved(
        self, recorded: Capture, staged: Capture, is_bounded: bool
    ) -> Finding | None:
        """What differs between the captures of two batches."""
        return same_for_all_host_values(
            recorded.captured,
            staged.captured,
            self.recordings.pools,
            carries_bound=is_bounded,
        )

    def _record(self, key: GraphKey, rows: StepRows) -> Iterator[Finding]:
        """Capture the recording, and the same once more."""
        self.recordings.warm_up(rows)
        staged_build = self.recordings.stage(rows)
        recorded = self.recordings.capture(rows, staged_build)
        self._recorded[rows] = recorded
        self.nodes_per_key.setdefault(key, recorded.graph.num_nodes)
        again = self.recordings.capture(rows, staged_build)
        moved = same_but_for_own_pool(recorded.captured, again.captured)
        if moved is not None:
            yield moved
        yield from host_nodes(recorded.captured)
        yield from stale_host_copies(self.build, rows, recorded.captured)

    def _replay(
        self, key: GraphKey, recorded: Capture, staged: Capture
    ) -> Iterator[Finding]:
        """Replay the recording on the staged step, and build that eagerly."""
        step = replay_step(self.build, recorded, staged)
        checks = ReplayChecks(self.build, recorded, step, self.recordings.pools)
        yield from checks.outputs_equal()
        yield from checks.leaves_equal(self.log)
        yield from host_fields_equal(
            step.replayed.leaves,
            step.eager.leaves,
            checks.is_device,
            self.log,
            is_worst_case=min(recorded.rows.seq_lens) >= max(staged.rows.seq_lens),
            longest=max(staged.rows.seq_lens),
        )
        yield from checks.inputs_kept(self.in_place_inputs)
        yield from checks.outputs_stable(staged.leaves)
        for path, leaf in checks.device_leaves():
            self.log.note_rows(key, path, leaf)
