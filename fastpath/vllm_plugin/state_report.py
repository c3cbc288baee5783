"""The report of a plugged-in state, from what it and its parts hold."""

from collections.abc import Mapping, Sequence
from typing import Any

from graphparity.fastpath.fork_decision import ForkDecision
from graphparity.fastpath.graph_key import GraphKey
from graphparity.fastpath.metadata_graphs import EagerReason
from graphparity.fastpath.proving.verdict import Level, Verdict
from graphparity.fastpath.vllm_plugin.report import (
    DraftReport,
    ForkReport,
    GroupReport,
    Report,
)


def report_of(state: Any) -> Report:
    """What a plugged-in state recorded, and what its steps did since.

    Any thread may ask: one that asks during a capture waits for its end.
    """
    with state.plugged.lock:
        return _report(state)


def _report(state: Any) -> Report:
    plugged, graphs = state.plugged, state.graphs
    recordings = graphs.recordings.values()
    return Report(
        model_state=plugged.name,
        mode=plugged.config.mode.value,
        recorder=plugged.recorder.name,
        num_keys=sum(map(len, plugged.keys)),
        num_recorded=len(recordings),
        num_graphs=graphs.num_graphs,
        num_launchless=sum(it.launch is None for it in recordings),
        num_left_eager=len(graphs.left_eager),
        num_made_anew=state.num_made_anew,
        key_refusals=_refusals(graphs.refusals),
        groups=plugged.groups,
        draft=_draft_report(plugged),
        fork=_fork_report(state.fork_decision),
        capture_s=plugged.capture_s,
        judge_s=plugged.judge_s,
        memory_bytes=plugged.memory_bytes,
        steps_replayed=graphs.num_replayed,
        steps_verified=getattr(state, "num_verified", 0),
        steps_eager={it.name: graphs.eager_steps.get(it, 0) for it in EagerReason},
    )


def _draft_report(plugged: Any) -> DraftReport:
    drafts = plugged.drafts
    if drafts is None:
        return DraftReport(why_none=plugged.why_no_drafts)
    graphs, attn_groups = drafts.graphs, drafts.attn_groups
    return DraftReport(
        num_keys=len(drafts.keys),
        num_recorded=len(graphs.recordings),
        num_graphs=graphs.num_graphs,
        key_refusals=_refusals(graphs.refusals),
        groups=tuple(
            group_report(index, verdict, attn_groups[index])
            for index, verdict in drafts.verdicts.items()
        ),
        capture_s=drafts.capture_s,
        judge_s=drafts.judge_s,
        memory_bytes=plugged.draft_memory_bytes,
        builds_replayed=graphs.num_replayed,
        builds_verified=drafts.num_verified,
        builds_eager={it.name: graphs.eager_steps.get(it, 0) for it in EagerReason},
    )


def _refusals(refusals: Mapping[GraphKey, Exception]) -> dict[str, str]:
    """The key that could not be recorded -> why; not those it was to serve as well."""
    first: dict[Exception, GraphKey] = {}
    for key, error in refusals.items():
        first.setdefault(error, key)
    return {str(tuple(key)): str(error) for error, key in first.items()}


def _fork_report(decision: ForkDecision) -> ForkReport:
    serial = decision.serial
    best = decision.tried[0] if decision.tried else None
    return ForkReport(
        num_branches=len(decision.branches),
        reason=decision.reason,
        num_tried=len(best.branches) if best else 0,
        serial_gpu_us=serial.device_us if serial else None,
        serial_launch_us=serial.host_us if serial else None,
        forked_gpu_us=best.times.device_us if best else None,
        forked_launch_us=best.times.host_us if best else None,
    )


def group_report(index: int, verdict: Verdict, groups: Sequence[Any]) -> GroupReport:
    """What the operator sees of one judged group."""
    refusal = verdict.refusal
    if refusal is not None:
        where = f" at {refusal.location}" if refusal.location else ""
        reason = f"{refusal.check.name}: {refusal.reason}{where}"
    elif verdict.level is Level.OFF:
        reason = "not judged"
    else:
        nodes = sorted(set(verdict.nodes_per_key.values()))
        reason = f"judged {verdict.level.value}; device operations {_range(nodes)}"
    return GroupReport(
        index=index,
        builder=verdict.builder,
        num_layers=sum(len(group.layer_names) for group in groups),
        is_recorded=verdict.recordable,
        reason=reason,
    )


def _range(numbers: Sequence[int]) -> str:
    if not numbers:
        return "none"
    first, last = numbers[0], numbers[-1]
    return str(first) if first == last else f"{first} to {last}"
