"""Our DeepSeek-V4.1 decode state beside vLLM's own specialized one, on a Hopper GPU.

``python -m graphparity.conformance.benchmarks.deepseek_v41_states --out FILE`` makes
both states over the same builders and buffers in this process, lets each record all
keys in its own way, and times ``prepare_attn`` of the same steps: ours, vLLM's and the
eager build, in rounds that take turns. vLLM's class is unmodified, but that its list of
recordable builders is extended by Hopper's and that it tunes no kernels at its start.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from graphparity.conformance.benchmarks.metadata_builds import (
    CaptureCost,
    cost_of,
    environment,
    keys_to_measure,
    measured_subject,
)
from graphparity.conformance.benchmarks.timing import host_time, interval_of
from graphparity.conformance.checks import check_step
from graphparity.conformance.decode_batches import DecodeBatch
from graphparity.conformance.staging import stage
from graphparity.conformance.subjects.subject import Subject
from graphparity.fastpath.graph_key import GraphKey

RUNTIME = "vllm.models.deepseek_v41.nvidia.specialized_decode.runtime"
ROUNDS, CALLS = 20, 60
"""Rounds of each state, and calls of a round."""


@dataclass(frozen=True)
class StateTimes:
    """One key; host microseconds of ``prepare_attn``, medians over the rounds."""

    query_len: int
    key: tuple[int, ...]
    ours: float
    vllms: float
    eager: float
    ours_less_vllms_95: tuple[float, float]
    """95 % interval of the mean difference of the rounds."""


@contextmanager
def noting(owner: Any, name: str, marks: list[tuple[float, int]]) -> Iterator[None]:
    """Note time and free GPU memory after every call of a method."""
    method = getattr(owner, name)

    def noted(*args: Any, **kwargs: Any) -> Any:
        result = method(*args, **kwargs)
        marks.append((time.perf_counter(), torch.cuda.mem_get_info()[0]))
        return result

    with mock.patch.object(owner, name, noted):
        yield


def vllms_state(subject: Subject) -> tuple[Any, CaptureCost]:
    """A state of vLLM's own class over a subject's builders and buffers, recorded."""
    warm_up: Any = ModuleType(f"{RUNTIME}.warmup")
    warm_up.warm_up = lambda *args: None
    sys.modules.setdefault(f"{RUNTIME}.warmup", warm_up)
    from vllm.models.deepseek_v41.nvidia.specialized_decode.runtime import (  # noqa: PLC0415
        metadata_graphs,
        model_state,
    )

    recordable = {
        type(group.get_metadata_builder())
        for groups in subject.attn_groups
        for group in groups
    }
    metadata_graphs._RECORDABLE_BUILDERS |= recordable
    ours: Any = subject.state
    model = SimpleNamespace(
        token_lookback_depth=ours.lookback_token_ids.shape[1],
        build_specialized_decode=lambda: None,
    )
    state = model_state.DeepseekV41SpecializedDecodeModelState(
        ours.vllm_config, model, None, ours.device
    )
    state.initialize_kv_cache(subject.kv_cache_config, subject.block_tables)
    marks: list[tuple[float, int]] = []
    with noting(metadata_graphs.AttnMetadataCudaGraphs, "capture", marks):
        record(subject, state)
    assert len(marks) == len(subject.graph_keys), "vLLM's class recorded other keys"
    return state, cost_of(f"vllm's:{subject.limits.query_len}", marks)


def record(subject: Subject, state: Any) -> None:
    """Let a state record all keys."""
    state.capture_inner_cudagraphs(
        subject.input_buffers,
        subject.block_tables,
        subject.attn_groups,
        subject.kv_cache_config,
    )


def measure_key(subject: Subject, vllms: Any, key: GraphKey) -> StateTimes:
    """Time the three states in turn."""
    staged = stage(subject, batch_of(subject, key))
    states = {"ours": subject.state, "vllms": vllms, "eager": subject.eager_state}
    rounds: dict[str, list[float]] = {name: [] for name in states}
    for _ in range(ROUNDS):
        for name, state in states.items():
            rounds[name].append(_round(partial(staged.run, subject, state)))
    medians = {name: round(statistics.median(rounds[name]), 2) for name in rounds}
    differences = np.array(rounds["ours"]) - np.array(rounds["vllms"])
    return StateTimes(
        subject.limits.query_len,
        tuple(key),
        **medians,
        ours_less_vllms_95=interval_of(differences, np.mean),
    )


def batch_of(subject: Subject, key: GraphKey) -> DecodeBatch:
    """Requests of about the model's length."""
    longest = subject.limits.max_model_len
    lengths = tuple(longest - row for row in range(key.num_reqs))
    return DecodeBatch(key, lengths, tuple(range(key.num_reqs)), seed=1)


def launch_unmetered(state: Any) -> None:
    """Let a subject's state launch its graphs itself, as outside of the suite."""
    recordings = state.graphs._recordings
    for key, recording in recordings.items():
        recordings[key] = recording._replace(launch=recording.graph.graph.replay)


def _round(call: Callable[[], object]) -> float:
    return host_time(call, num_calls=CALLS).median


def measure(query_len: int) -> tuple[list[StateTimes], list[CaptureCost]]:
    """All keys to measure of a query length, and what recording cost either state."""
    subject, cost = measured_subject(f"deepseek-v41-hopper:{query_len}")
    vllms, vllms_cost = vllms_state(subject)
    keys = keys_to_measure(subject)
    for key in keys:
        check_step(subject, batch_of(subject, key))
    launch_unmetered(subject.state)
    times = [measure_key(subject, vllms, key) for key in keys]
    return times, [cost, vllms_cost]


def print_figures(times: list[StateTimes], costs: list[CaptureCost]) -> None:
    """Print the figures as two tables."""
    table = Table(title="prepare_attn, host us, medians of rounds in turn")
    for column in ("query length", "key", "ours", "vLLM's", "eager", "eager / ours"):
        table.add_column(column)
    table.add_column("ours less vLLM's, 95 %")
    for row in times:
        low, high = row.ours_less_vllms_95
        table.add_row(
            str(row.query_len),
            "x".join(map(str, row.key)),
            *map(str, (row.ours, row.vllms, row.eager)),
            f"{row.eager / row.ours:.0f}",
            f"{low:+} to {high:+}",
        )
    recording = Table(title="Recording all keys")
    for column in ("state", "keys", "seconds", "ms a key beyond", "KiB a key"):
        recording.add_column(column)
    for cost in costs:
        recording.add_row(*map(str, asdict(cost).values()))
    console = Console(width=130)
    console.print(table)
    console.print(recording)


def main() -> None:
    """Measure query lengths 1, 2 and 4."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the JSON file")
    options = parser.parse_args()
    times: list[StateTimes] = []
    costs: list[CaptureCost] = []
    for query_len in (1, 2, 4):
        more_times, more_costs = measure(query_len)
        times += more_times
        costs += more_costs
    figures = {
        "environment": environment(),
        "times": [asdict(row) for row in times],
        "captures": [asdict(row) for row in costs],
    }
    options.out.write_text(json.dumps(figures, indent=1))
    print_figures(times, costs)


if __name__ == "__main__":
    main()
