"""Whether a state's builds are recorded as branches: decided when it records.

Forking trades the host's time for the GPU's: a graph with branches takes longer to
launch, and its small kernels run side by side. A step that waits for its GPU is shorter
by what the GPU saves, a step that waits for its host longer by what the launch costs
more; which of them a step is depends on model and load, and is not known here. So what
is saved must exceed twice what is lost, and by more than timers can tell: then a step
may lose half of what it may win, at most. Twice, since launches are measured with warm
caches, and cost several times as much between the other work of a step.

As many branches as there can be are one candidate; two of about equal time are the
other, as each branch adds to the launch. On one H200 a graph of 12 kernels was
launched in 5.1 to 5.3 us and took 13.8 us of the GPU; in two branches 6.5 and 7.9 us,
in four 8.5 and 9.3 us: by this rule two branches pay, four do not. Of DeepSeek-V4.1's
builds there, four do (``docs/benchmarks.md``).
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from graphparity.fastpath.forked_build import Branches, packed, serial
from graphparity.fastpath.metadata_graphs import BuildFn
from graphparity.fastpath.recorders.protocol import (
    CaptureError,
    Recorder,
    ReplayTimes,
)

MARGIN = 2.0
"""What is saved of the GPU's time, for each microsecond of the host's."""
RESOLUTION_US = 1.0
"""Differences of the GPU's time that are not told from noise."""

NO_TIMES = ReplayTimes(0.0, 0.0)
"""Of a build without device work, which is not launched."""


class Forking(Enum):
    """What a state is asked to do."""

    NEVER = "never"
    """Record serial builds."""
    MEASURED = "measured"
    """Record branches where that was measured to pay."""
    ALWAYS = "always"
    """Record as many branches as there can be."""


class Candidate(NamedTuple):
    """Branches that a build may be recorded in."""

    branches: Branches
    times: ReplayTimes
    """Of the largest key."""


@dataclass(frozen=True)
class ForkDecision:
    """In which branches a state records, and why."""

    branches: Branches
    """What is recorded; one branch is the serial build."""
    reason: str
    serial: ReplayTimes | None = None
    """The serial build of the largest key; None if nothing was measured."""
    tried: tuple[Candidate, ...] = ()
    """What the serial build was measured against, the best one first."""


UNDECIDED = ForkDecision((), "nothing was recorded")


def pays(serial_times: ReplayTimes, forked: ReplayTimes) -> bool:
    """Whether the GPU's time saved is worth the host's: the rule of this module."""
    saved = serial_times.device_us - forked.device_us
    lost = max(0.0, forked.host_us - serial_times.host_us)
    return saved > RESOLUTION_US + MARGIN * lost


def decide(
    forking: Forking,
    recorder: Recorder,
    branches: Branches,
    build_of: Callable[[Branches], BuildFn],
) -> ForkDecision:
    """Decide for one state, by builds of its largest key.

    Args:
        forking: ``ALWAYS`` or ``MEASURED``.
        recorder: captures and times the builds, which write their buffers.
        branches: as many as there can be.
        build_of: stages the largest key's build in the branches given, which need not
            hold all groups.
    """
    if len(branches) < 2:
        return ForkDecision(serial(branches), "there can be one branch at most")
    if forking is Forking.ALWAYS:
        return ForkDecision(branches, "asked for")
    try:
        return _measured(recorder, branches, build_of)
    except CaptureError as error:
        return ForkDecision(serial(branches), f"not measured: {error}")


def _measured(
    recorder: Recorder, branches: Branches, build_of: Callable[[Branches], BuildFn]
) -> ForkDecision:
    whole = serial(branches)
    serial_times = _times_of(recorder, build_of(whole))
    if serial_times is None:
        return ForkDecision(whole, f"recorder {recorder.name!r} tells no times")
    if serial_times is NO_TIMES:
        return ForkDecision(whole, "the build has no device work")
    tried = [
        Candidate(it, _times_of(recorder, build_of(it)) or NO_TIMES)
        for it in _candidates(recorder, branches, build_of)
    ]
    best, *others = sorted(tried, key=lambda candidate: sum(candidate.times))
    is_paid = pays(serial_times, best.times)
    return ForkDecision(
        best.branches if is_paid else whole,
        "measured to pay" if is_paid else "measured not to pay",
        serial_times,
        (best, *others),
    )


def _candidates(
    recorder: Recorder, branches: Branches, build_of: Callable[[Branches], BuildFn]
) -> list[Branches]:
    if len(branches) == 2:
        return [branches]
    alone = {it: _times_of(recorder, build_of((it,))) or NO_TIMES for it in branches}
    weights = {branch: times.device_us for branch, times in alone.items()}
    return [branches, packed(branches, weights)]


def _times_of(recorder: Recorder, build: BuildFn) -> ReplayTimes | None:
    """The times of a build's replay; its graph is given up."""
    recorder.warm_up(build)
    recorder.synchronize()
    graph, _ = recorder.capture(build)
    try:
        return recorder.replay_times(graph) if graph.num_nodes else NO_TIMES
    finally:
        graph.release()
