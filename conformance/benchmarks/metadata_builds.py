"""Replayed metadata builds beside eager ones on a GPU: host time, capture, memory.

``python -m graphparity.conformance.benchmarks.metadata_builds SUBJECT... --out FILE``
measures every subject in this process, eager and replayed steps alternating by key,
and writes JSON beside the table. Host times are of ``prepare_attn``; a replay alone
is the launch of the recorded build.
"""

import argparse
import json
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import TypeVar
from unittest import mock

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from graphparity.conformance.benchmarks.timing import (
    HostTime,
    host_time,
    launch_floor,
)
from graphparity.conformance.checks import check_step
from graphparity.conformance.decode_batches import DecodeBatch
from graphparity.conformance.staging import stage
from graphparity.conformance.subjects.registry import fresh_subject
from graphparity.conformance.subjects.subject import Subject
from graphparity.fastpath.graph_key import GraphKey
from graphparity.fastpath.recorders import CudaBuildGraph, CudaRecorder

T = TypeVar("T")


@dataclass(frozen=True)
class KeyTimes:
    """One key of one subject; times in microseconds of host time."""

    subject: str
    key: tuple[int, ...]
    num_nodes: int
    eager: HostTime
    replayed: HostTime
    replay_alone: HostTime | None
    """The launch alone; None for a build without device work, which needs none."""
    launch_floor: HostTime
    """The launch of a graph of one small kernel, measured right before."""


@dataclass(frozen=True)
class CaptureCost:
    """What recording a subject's keys cost."""

    subject: str
    num_keys: int
    seconds: float
    """From the end of the first capture to the end of the last."""
    ms_per_key_beyond_first: float
    marginal_kib_per_key: float
    """GPU memory taken by the keys past the first quarter, by key."""


def measured_subject(name: str) -> tuple[Subject, CaptureCost]:
    """Make a subject, noting time and free GPU memory at each of its captures."""
    marks: list[tuple[float, int]] = []
    capture = CudaRecorder.capture

    def noted_capture(
        self: CudaRecorder, build: Callable[[], T]
    ) -> tuple[CudaBuildGraph, T]:
        captured = capture(self, build)
        marks.append((time.perf_counter(), torch.cuda.mem_get_info()[0]))
        return captured

    with mock.patch.object(CudaRecorder, "capture", noted_capture):
        subject = fresh_subject(name, "cuda")
    return subject, cost_of(name, marks)


def cost_of(name: str, marks: list[tuple[float, int]]) -> CaptureCost:
    """The cost of captures after each of which time and free memory were noted."""
    between = [after[0] - before[0] for before, after in pairwise(marks)]
    quarter = len(marks) // 4
    taken = marks[quarter - 1][1] - marks[-1][1]
    return CaptureCost(
        name,
        len(marks),
        round(sum(between), 3),
        round(1e3 * sum(between) / max(1, len(between)), 3),
        round(taken / max(1, len(marks) - quarter) / 1024, 1),
    )


def keys_to_measure(subject: Subject) -> list[GraphKey]:
    """The smallest key, the largest, and padded ones between."""
    keys = sorted(subject.graph_keys)
    wanted = {1, 3, 8, 13, 48, subject.limits.max_num_reqs}
    return [key for key in keys if key.num_reqs in wanted]


def measure_key(subject: Subject, key: GraphKey) -> KeyTimes:
    """Check a step of ``key``, then time it replayed and eager."""
    limits = subject.limits
    lengths = [limits.max_model_len - row for row in range(key.num_reqs)]
    batch = DecodeBatch(key, tuple(lengths), tuple(range(key.num_reqs)), seed=1)
    floor = launch_floor()
    subject.recorder.last_replayed = None
    check_step(subject, batch)
    launched = subject.recorder.last_replayed
    staged = stage(subject, batch)
    return KeyTimes(
        subject.name,
        tuple(key),
        launched.num_nodes if launched else 0,
        eager=host_time(lambda: staged.run(subject, subject.eager_state)),
        replayed=host_time(lambda: staged.run(subject, subject.state)),
        replay_alone=host_time(launched.graph.replay) if launched else None,
        launch_floor=floor,
    )


def environment() -> dict[str, str]:
    """Versions and machine of the figures."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def main() -> None:
    """Measure the subjects named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("subjects", nargs="+", help="FAMILY:QUERY_LEN")
    parser.add_argument("--out", type=Path, help="write the figures here as JSON")
    options = parser.parse_args()
    times, captures = [], []
    for name in options.subjects:
        subject, cost = measured_subject(name)
        captures.append(cost)
        for key in track(keys_to_measure(subject), description=name):
            times.append(measure_key(subject, key))
    figures = {
        "environment": environment(),
        "times": [asdict(row) for row in times],
        "captures": [asdict(row) for row in captures],
    }
    if options.out:
        options.out.write_text(json.dumps(figures, indent=1))
    print_figures(times, captures)


def print_figures(times: list[KeyTimes], captures: list[CaptureCost]) -> None:
    """Print the figures as two tables."""
    table = Table(title="Host us, median (99th percentile)")
    for column in ("subject", "key", "nodes", "eager", "replayed"):
        table.add_column(column)
    for column in ("alone", "launch floor", "ratio"):
        table.add_column(column)
    for row in times:
        table.add_row(
            row.subject,
            "x".join(map(str, row.key)),
            str(row.num_nodes),
            *(_shown(times) for times in (row.eager, row.replayed)),
            _shown(row.replay_alone),
            _shown(row.launch_floor),
            f"{row.eager.median / row.replayed.median:.0f}",
        )
    costs = Table(title="Recording all keys")
    for column in ("subject", "keys", "seconds", "ms a key beyond", "KiB a key"):
        costs.add_column(column)
    for cost in captures:
        costs.add_row(
            cost.subject,
            str(cost.num_keys),
            str(cost.seconds),
            str(cost.ms_per_key_beyond_first),
            str(cost.marginal_kib_per_key),
        )
    console = Console(width=120)
    console.print(table)
    console.print(costs)


def _shown(time: HostTime | None) -> str:
    return f"{time.median} ({time.p99})" if time else "no launch"


if __name__ == "__main__":
    main()
