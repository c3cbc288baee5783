"""What a replayed step says: equal to eager, in the right buffers, at one place."""

from collections.abc import Iterator, Mapping, Sequence

import torch

from graphparity.fastpath.group_build import GroupBuild
from graphparity.fastpath.proving.field_log import FieldLog
from graphparity.fastpath.proving.findings import Finding, at_node, last_node_at
from graphparity.fastpath.proving.group_memory import (
    Span,
    changed_paths,
    is_inside,
    memory_of,
    owner_of,
    same_content,
    span_of,
)
from graphparity.fastpath.proving.host_fields import carries_bound
from graphparity.fastpath.proving.leaves import Leaf
from graphparity.fastpath.proving.recordings import Capture
from graphparity.fastpath.proving.replays import ReplayedStep
from graphparity.fastpath.proving.verdict import Check


class ReplayChecks:
    """Checks of one replayed step.

    Args:
        build: the group.
        recorded: the capture that was replayed.
        step: what its replay and the eager builds left.
        pools: the memory of every capture alive.
    """

    def __init__(
        self,
        build: GroupBuild,
        recorded: Capture,
        step: ReplayedStep,
        pools: list[Span],
    ) -> None:
        self._inputs, self._outputs = build.inputs, build.outputs
        self._memory = memory_of(build)
        self._spans = [span_of(tensor) for tensor in self._memory.values()]
        self._pools = pools
        self._recorded, self._step = recorded, step
        self._nodes = recorded.captured.nodes
        self._bounded = carries_bound(step.replayed.leaves, step.eager.leaves)

    def is_device(self, leaf: Leaf) -> bool:
        """As ``is_device_leaf``, of this group."""
        return is_device_leaf(leaf, self._spans, self._pools)

    def device_leaves(self) -> Iterator[tuple[str, Leaf]]:
        """The device tensors that the recording returned, after the replay."""
        for path, leaf in self._step.replayed.leaves.items():
            if self.is_device(leaf):
                yield path, leaf

    def outputs_equal(self) -> Iterator[Finding]:
        """Outputs hold what eager leaves, but for what follows a carried bound."""
        step = self._step
        for path in (it for it in self._outputs if it not in self._inputs):
            actual, expected = step.replayed.memory[path], step.eager.memory[path]
            as_recorded = step.eager_as_recorded.memory[path]
            if not self._is_right(actual, expected, as_recorded):
                node = last_node_at(self._nodes, [span_of(self._outputs[path])])
                where = _where(actual, expected)
                reason = f"after a replay {path} differs from eager's{where}."
                yield at_node(Check.REPLAY_EQUALS_EAGER, node, reason, field=path)

    def leaves_equal(self, log: FieldLog) -> Iterator[Finding]:
        """Device leaves hold what eager's hold; those in inputs are the runner's."""
        for path, leaf in self.device_leaves():
            log.leaves[path].is_device = True
            assert leaf.place is not None
            if owner_of(leaf.place.address, self._inputs):
                continue
            yield from self._leaf_equal(log, path, leaf)

    def _leaf_equal(self, log: FieldLog, path: str, leaf: Leaf) -> Iterator[Finding]:
        eager = self._step.eager.leaves.get(path, Leaf(None)).value
        if isinstance(eager, torch.Tensor) and same_content(leaf.value, eager):
            return
        as_recorded = self._step.eager_as_recorded.leaves.get(path, Leaf(None)).value
        if isinstance(eager, torch.Tensor) and self._is_right(
            leaf.value, eager, as_recorded
        ):
            log.leaves[path].follows_bound = True
            return
        node = last_node_at(self._nodes, [_span(leaf)])
        reason = f"the replayed {path} differs from eager's{_where(leaf.value, eager)}."
        yield at_node(Check.REPLAY_EQUALS_EAGER, node, reason, field=path)

    def _is_right(
        self, actual: torch.Tensor, expected: torch.Tensor, as_recorded: object
    ) -> bool:
        if same_content(actual, expected):
            return True
        return (
            self._bounded
            and isinstance(as_recorded, torch.Tensor)
            and same_content(actual, as_recorded)
        )

    def inputs_kept(self, in_place: set[str]) -> Iterator[Finding]:
        """Inputs change on replay where and as eager changes them, or not at all."""
        step = self._step
        inputs = {path: step.before[path] for path in self._inputs}
        changed = {*changed_paths(inputs, step.replayed.memory)}
        changed |= {*changed_paths(inputs, step.eager.memory)}
        for path in sorted(changed):
            actual, expected = step.replayed.memory[path], step.eager.memory[path]
            if path in self._outputs or same_content(actual, expected):
                in_place |= {path} - self._outputs.keys()
                continue
            node = last_node_at(self._nodes, [span_of(self._inputs[path])])
            reason = (
                f"it writes {path}, which the builder does not own, otherwise than the "
                f"eager build does{_where(actual, expected)}."
            )
            yield at_node(Check.WRITE_SET, node, reason, field=path)

    def outputs_stable(self, *others: Mapping[str, Leaf]) -> Iterator[Finding]:
        """Every build returns device tensors at the captured place, which persists."""
        recorded = self._recorded.leaves
        builds = (self._step.replayed.leaves, self._step.eager.leaves, *others)
        for path, leaf in recorded.items():
            if leaf.place is None or not leaf.value.numel() or not self.is_device(leaf):
                continue
            places = [it[path].place for it in builds if path in it]
            reason = self._instability(leaf, places)
            if reason:
                node = last_node_at(self._nodes, [_span(leaf)])
                yield at_node(Check.STABLE_OUTPUTS, node, reason, field=path)

    def _instability(self, leaf: Leaf, places: Sequence[object]) -> str:
        assert leaf.place is not None
        if is_inside(leaf.place.address, self._pools):
            return "it is a new tensor in the graph's own pool, where others write."
        if not is_inside(leaf.place.address, self._spans):
            return "it lies in memory that neither the runner nor the builder declares."
        if any(place != leaf.place for place in places):
            return "builds of one key return it at different places."
        return ""


def is_device_leaf(leaf: Leaf, spans: list[Span], pools: list[Span]) -> bool:
    """Whether a leaf lies in device memory: in the group's (``spans``), in a graph's
    (``pools``), or on another device than the host.
    """
    if leaf.place is None:
        return False
    where = leaf.place.address
    is_known = is_inside(where, spans) or is_inside(where, pools)
    return is_known or leaf.place.device_type != "cpu"


def _span(leaf: Leaf) -> Span:
    assert leaf.place is not None
    return leaf.place.address, leaf.place.address + leaf.place.nbytes


def _where(actual: torch.Tensor, expected: object) -> str:
    if not isinstance(expected, torch.Tensor) or actual.shape != expected.shape:
        return ""
    if actual.dtype != expected.dtype:
        return f": {actual.dtype}, but should be {expected.dtype}"
    differs = actual != expected
    if actual.dtype.is_floating_point:
        differs &= ~(actual.isnan() & expected.isnan())
    index = differs.nonzero()[0].tolist()
    there = tuple(index)
    found, wanted = actual[there].item(), expected[there].item()
    return f" at {index}: {found}, but should be {wanted}"
