"""Serial and forked metadata builds on a GPU: what launching and running them takes.

``python -m graphparity.conformance.benchmarks.forked_builds SUBJECT... --out FILE``
records a few keys of every subject in each form: serial, in two branches of about equal
time, and in as many as there can be. A step of each key is compared with the serial
eager build in each form, before its replay is timed. What a state would decide by its
largest key is told as well.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from graphparity.conformance.benchmarks.metadata_builds import (
    environment,
    keys_to_measure,
)
from graphparity.conformance.checks import check_step
from graphparity.conformance.decode_batches import DecodeBatch
from graphparity.conformance.recorded_anew import recorded_anew
from graphparity.conformance.subjects.registry import fresh_subject
from graphparity.conformance.subjects.subject import Subject
from graphparity.fastpath.fork_decision import ForkDecision, Forking
from graphparity.fastpath.forked_build import Branches
from graphparity.fastpath.graph_key import GraphKey


@dataclass(frozen=True)
class FormTimes:
    """One key in one form; medians in microseconds."""

    subject: str
    key: tuple[int, ...]
    branches: Branches
    num_nodes: int
    launch_us: float
    gpu_us: float


def measure(subject: Subject) -> tuple[ForkDecision, list[FormTimes]]:
    """What the subject's state decides, and the times of each key in each form.

    Raises:
        ParityError: a form's replay differs from the serial eager build.
    """
    keys = tuple(keys_to_measure(subject))
    measured: Any = recorded_anew(subject, keys, forking=Forking.MEASURED)
    decision: ForkDecision = measured.state.fork_decision
    forms = [
        recorded_anew(subject, keys, forking=Forking.NEVER),
        *(_in_branches(subject, keys, it.branches) for it in decision.tried),
    ]
    return decision, [row for form in forms for row in _times_of(form)]


def _in_branches(
    subject: Subject, keys: tuple[GraphKey, ...], branches: Branches
) -> Subject:
    """The groups of each branch are tied to each other."""
    return recorded_anew(
        subject,
        keys,
        forking=Forking.ALWAYS,
        tied_groups=lambda state, attn_groups: branches,
    )


def _times_of(form: Subject) -> Iterator[FormTimes]:
    state: Any = form.state
    longest = form.limits.max_model_len
    for key in form.graph_keys:
        rows = range(key.num_reqs)
        lengths = tuple(longest - row for row in rows)
        check_step(form, DecodeBatch(key, lengths, tuple(rows), seed=1))
        graph = state.graphs.recordings[key].graph
        times = form.recorder.replay_times(graph) if graph.num_nodes else None
        if times is not None:
            yield FormTimes(
                form.name,
                tuple(key),
                state.fork_decision.branches,
                graph.num_nodes,
                round(times.host_us, 2),
                round(times.device_us, 2),
            )


def print_times(times: list[FormTimes]) -> None:
    """Print them as a table."""
    table = Table(title="One replay, us, medians")
    for column in ("subject", "key", "nodes", "branches", "launch", "GPU"):
        table.add_column(column)
    for row in sorted(times, key=lambda it: (it.subject, it.key, len(it.branches))):
        table.add_row(
            row.subject,
            "x".join(map(str, row.key)),
            str(row.num_nodes),
            str(len(row.branches)),
            str(row.launch_us),
            str(row.gpu_us),
        )
    Console(width=120).print(table)


def main() -> None:
    """Measure the subjects named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("subjects", nargs="+", help="FAMILY:QUERY_LEN")
    parser.add_argument("--out", type=Path, required=True, help="the JSON file")
    options = parser.parse_args()
    decisions: dict[str, ForkDecision] = {}
    times: list[FormTimes] = []
    for name in options.subjects:
        decisions[name], rows = measure(fresh_subject(name, "cuda"))
        times += rows
        print(f"{name}: {decisions[name]}", flush=True)
    figures = {
        "environment": environment(),
        "decisions": {name: asdict(it) for name, it in decisions.items()},
        "times": [asdict(row) for row in times],
    }
    options.out.write_text(json.dumps(figures, indent=1))
    print_times(times)


if __name__ == "__main__":
    main()
