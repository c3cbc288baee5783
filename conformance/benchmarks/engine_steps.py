"""Decode steps of a real vLLM engine on a GPU: eager beside replayed metadata builds.

``python -m graphparity.conformance.benchmarks.engine_steps --out engine-steps.json``
starts one engine a configuration, with random weights, in this process. For every
batch size it checks that the tokens of both arms are equal and that every replayed step
passes ``verify``, then times blocks of decode steps that alternate between the arms
(``engine_arms``). The file is written after every row, and rows that it holds are not
measured again. It exits with 1 if a row could not be measured, or was not equal.

``--only NAME --pairs 4`` measures the configurations whose name contains it, in a
minute or two: ``eagle`` and ``mtp`` for draft models, ``falcon-h1`` for a hybrid of
Mamba2 and attention, ``deepseek-v41`` for DeepSeek-V4.1, whose layers need TileLang
0.1.12 besides what vLLM's wheel holds.
"""

import argparse
import gc
import json
import os
import statistics
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from graphparity.conformance.benchmarks.engine import (
    CONFIGURATIONS,
    ENVIRONMENT,
    LONGEST_PROMPT,
    MAX_MODEL_LEN,
    Configuration,
    Engine,
)
from graphparity.conformance.benchmarks.engine_arms import (
    BlockClock,
    arm,
    arms_of,
    probing,
)
from graphparity.conformance.benchmarks.metadata_builds import environment
from graphparity.conformance.benchmarks.timing import (
    HostTime,
    interval_of,
    launch_floor,
    small_graph,
    summary_of,
)

BLOCK_STEPS, WARM_UP_STEPS = 30, 16
CHECKED_TOKENS, PROBED_TOKENS = 64, 400


@dataclass(frozen=True)
class Row:
    """One batch size of one configuration; times in microseconds."""

    configuration: str
    batch: int
    tokens_equal: bool
    steps_verified: int
    missing_recordings: int
    build_eager: HostTime
    build_replayed: HostTime
    draft_build_eager: HostTime | None
    """Of one step of a draft model's own; None where no such build is recorded."""
    draft_build_replayed: HostTime | None
    draft_builds_a_step: int
    """Such builds in a step of the target."""
    launch_floor: HostTime
    """Launching a graph of one small kernel, again and again."""
    launch_floor_in_step: HostTime
    """The same between the other work of the engine's steps."""
    call_floor_in_step: HostTime
    """A call of nothing, there."""
    forward_gpu: float
    """What the GPU needs for the FULL graph of the forward alone."""
    gpu_wait_eager: HostTime
    gpu_wait_replayed: HostTime
    """What the host waits for the GPU in a step: a step that is bound by the GPU waits
    longer by what its build is shorter."""
    step_eager: float
    step_replayed: float
    """Medians over blocks of the block's median step."""
    num_pairs: int
    change_percent: float
    """Median over pairs of blocks of how much longer a replayed step is."""
    change_percent_95: tuple[float, float]
    blocks_us: dict[str, list[float]]
    """Arm -> the median step of each of its blocks."""


def measure(engine: Engine, name: str, batch: int, num_pairs: int) -> Row:
    """Check a batch size, then time it by at most ``num_pairs`` pairs of blocks."""
    state, arms = engine.state, arms_of(engine.state)
    verified_before = state.num_verified
    tokens = {}
    for arm_name in ("eager", "verified", "replayed"):
        with arm(state, arms[arm_name]):
            tokens[arm_name] = engine.generate(batch, CHECKED_TOKENS)
    floor, (floor_in_step, call_floor) = launch_floor(), _floors_in_step(engine, batch)
    num_pairs = min(num_pairs, _pairs_that_fit(1 + engine.num_drafts))
    clock = BlockClock(engine.runner, num_pairs, BLOCK_STEPS)
    with clock.running(WARM_UP_STEPS):
        engine.generate(batch, _tokens_to_fill(num_pairs, 1 + engine.num_drafts))
    medians = {
        arm_name: [statistics.median(block) for block in blocks]
        for arm_name, blocks in clock.block_steps_us().items()
    }
    change, interval = _change_percent(medians["eager"], medians["replayed"])
    return Row(
        configuration=name,
        batch=batch,
        tokens_equal=tokens["eager"] == tokens["replayed"] == tokens["verified"],
        steps_verified=state.num_verified - verified_before,
        missing_recordings=engine.report()["steps_eager"]["MISSING_RECORDING"],
        build_eager=summary_of(clock.build_ns["eager"]),
        build_replayed=summary_of(clock.build_ns["replayed"]),
        draft_build_eager=_summary_if_any(clock.draft_build_ns["eager"]),
        draft_build_replayed=_summary_if_any(clock.draft_build_ns["replayed"]),
        draft_builds_a_step=engine.draft_builds_a_step,
        launch_floor=floor,
        launch_floor_in_step=floor_in_step,
        call_floor_in_step=call_floor,
        forward_gpu=engine.forward_gpu_us(batch),
        gpu_wait_eager=summary_of(clock.gpu_wait_ns["eager"]),
        gpu_wait_replayed=summary_of(clock.gpu_wait_ns["replayed"]),
        step_eager=round(statistics.median(medians["eager"]), 1),
        step_replayed=round(statistics.median(medians["replayed"]), 1),
        num_pairs=num_pairs,
        change_percent=change,
        change_percent_95=interval,
        blocks_us={it: [round(us, 1) for us in medians[it]] for it in medians},
    )


def _floors_in_step(engine: Engine, batch: int) -> tuple[HostTime, HostTime]:
    """A launch of a small graph, and a call of nothing, in steps of the engine."""
    launches: list[int] = []
    calls: list[int] = []
    probes: dict[Callable[[], object], list[int]] = {
        small_graph().replay: launches,
        _nothing: calls,
    }
    replayed = arms_of(engine.state)["replayed"]
    with arm(engine.state, probing(replayed, probes)):
        engine.generate(batch, PROBED_TOKENS)
    return summary_of(launches), summary_of(calls)


def _summary_if_any(spans: list[int]) -> HostTime | None:
    return summary_of(spans) if spans else None


def _nothing() -> None:
    """What a call costs."""


def _pairs_that_fit(tokens_a_step: int) -> int:
    """Pairs of blocks that fit into the longest sequence, whatever is accepted."""
    num_steps = (MAX_MODEL_LEN - LONGEST_PROMPT) // tokens_a_step
    return (num_steps - 2 * WARM_UP_STEPS) // (2 * BLOCK_STEPS)


def _tokens_to_fill(num_pairs: int, tokens_a_step: int) -> int:
    """Tokens of a request with which every block fills, whatever is accepted."""
    return tokens_a_step * (2 * num_pairs * BLOCK_STEPS + 2 * WARM_UP_STEPS)


def _change_percent(
    eager: Sequence[float], replayed: Sequence[float]
) -> tuple[float, tuple[float, float]]:
    """Median of the pairs' changes, with a 95 % interval by resampling pairs."""
    changes = 100 * (np.array(replayed) / np.array(eager) - 1)
    return round(float(np.median(changes)), 2), interval_of(changes, np.median)


def run(
    configuration: Configuration, done: list[dict[str, Any]], num_pairs: int
) -> Iterator[dict[str, Any]]:
    """The rows of a configuration that are not ``done``, as plain data."""
    measured = {(row["configuration"], row["batch"]) for row in done}
    batches = [
        batch
        for batch in configuration.batches
        if (configuration.name, batch) not in measured
    ]
    if not batches:
        return
    engine = Engine(configuration)
    start_up = {"start_s": round(engine.start_s, 1), "report": engine.report()}
    for batch in batches:
        row = measure(engine, configuration.name, batch, num_pairs)
        yield asdict(row) | start_up | {"environment": environment()}
    del engine
    gc.collect()
    torch.cuda.empty_cache()


def problems_of(row: dict[str, Any]) -> list[str]:
    """Why a row says nothing of replays, or speaks against them."""
    report = row["report"]
    found = {
        "the tokens of the arms differ": not row["tokens_equal"],
        "no step was verified": not row["steps_verified"],
        "steps missed their recording": row["missing_recordings"] > 0,
        "not every key was recorded": report["num_recorded"] < report["num_keys"],
    }
    return [problem for problem, holds in found.items() if holds]


def print_rows(rows: Sequence[dict[str, Any]]) -> None:
    """Print all rows as a table."""
    table = Table(title="Engine steps on a GPU, microseconds")
    for column in ("configuration", "batch", "build eager", "replayed"):
        table.add_column(column)
    for column in ("draft build eager", "replayed", "a step"):
        table.add_column(column)
    for column in ("floor", "floor in step", "call in step", "GPU forward"):
        table.add_column(column)
    for column in ("GPU wait eager", "replayed"):
        table.add_column(column)
    for column in ("step eager", "replayed", "change % [95 %]", "verified", "tokens"):
        table.add_column(column)
    for row in rows:
        low, high = row["change_percent_95"]
        table.add_row(
            row["configuration"],
            str(row["batch"]),
            *(_shown(row[it]) for it in ("build_eager", "build_replayed")),
            *(
                _shown_if_any(row.get(it))
                for it in ("draft_build_eager", "draft_build_replayed")
            ),
            str(row.get("draft_builds_a_step", 0)),
            *(_shown(row[it]) for it in ("launch_floor", "launch_floor_in_step")),
            _shown(row["call_floor_in_step"]),
            str(row["forward_gpu"]),
            *(_shown(row[it]) for it in ("gpu_wait_eager", "gpu_wait_replayed")),
            str(row["step_eager"]),
            str(row["step_replayed"]),
            f"{row['change_percent']:+} [{low:+}, {high:+}]",
            str(row["steps_verified"]),
            "equal" if row["tokens_equal"] else "DIFFER",
        )
    Console(width=230).print(table)


def _shown(times: dict[str, float]) -> str:
    return f"{times['median']} ({times['p99']})"


def _shown_if_any(times: dict[str, float] | None) -> str:
    return _shown(times) if times else ""


def main() -> int:
    """Measure what is missing in the file, write it, and print all of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the JSON file")
    parser.add_argument("--only", default="", help="names that contain this")
    parser.add_argument("--pairs", type=int, default=40, help="blocks of each arm")
    options = parser.parse_args()
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    rows = json.loads(options.out.read_text())["rows"] if options.out.exists() else []
    num_failed = 0
    for configuration in CONFIGURATIONS:
        if options.only not in configuration.name:
            continue
        try:
            for row in run(configuration, rows, options.pairs):
                rows.append(row)
                options.out.write_text(json.dumps({"rows": rows}, indent=1))
        except Exception:  # noqa: BLE001, the other configurations are still measured
            traceback.print_exc()
            num_failed += 1
    print_rows(rows)
    for row in rows:
        for problem in problems_of(row):
            print(f"{row['configuration']}, batch {row['batch']}: {problem}")
    return int(num_failed > 0 or not rows or any(map(problems_of, rows)))


if __name__ == "__main__":
    sys.exit(main())
