"""A real server under load for minutes, with every replayed step compared.

``python -m graphparity.conformance.benchmarks.server_soak --minutes 5 --mode verify
--out server-soak.json`` starts ``vllm serve`` on a model of random weights, with the
plug-in, and drives it by ``vllm bench serve`` in rounds: random prompts of mixed
lengths, at other request rates from round to round. Between two rounds, when no
request is in flight, it samples the plug-in's counters and memory. The server's log
is left beside the figures, with the suffix ``.log``. The run fails, in one sentence
each, if

- a request failed: its answer was an error, or brought no token;
- the server died or stopped answering: that is also how mode ``verify`` shows a
  difference, since its ``VerifyError`` stops serving, and how an answer that breaks
  off shows, which the client counts as completed once a token of it came;
- a step was not verified: counted from start to end, ``steps_verified`` is zero or
  not ``steps_replayed`` (mode ``verify``), or no step was replayed (mode ``replay``);
- a recording was missing or refused: a step that was eager as ``MISSING_RECORDING`` or
  ``CAPTURE_REFUSED``; or a round completed no request;
- memory grew from the end of the first round, which has the largest batches, to the
  end of the last: what all processes use of the GPU, as the driver counts it, by more
  than 1 MiB, or what is resident on the host of all the server's processes, pages that
  they share counted for each, by more than 5 %.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from graphparity.conformance.benchmarks.model_shapes import write_model
from graphparity.conformance.benchmarks.served_model import (
    ENVIRONMENT,
    MAX_NUM_REQS,
    VLLM,
    Sample,
    Server,
    ServerError,
    serving,
    write_tokenizer,
)

ROUNDS = {"inf": 512, "2": 40, "8": 160}
"""Requests a second -> requests of a round. The largest batches come first: what they
make the allocators keep is no growth."""
ROUND_S = 600
"""Deadline of a round."""
MIB = 1 << 20
GPU_GROWTH, HOST_GROWTH = MIB, 0.05
"""What growth may not exceed: bytes of GPU memory, the share of host memory."""


@dataclass(frozen=True)
class Round:
    """One run of the client, and what held before and after it."""

    request_rate: str
    completed: int
    failed: int
    output_tokens_per_s: float
    before: Sample
    after: Sample

    def steps(self, counter: str) -> int:
        """Steps of this round, by a counter of the report."""
        return int(self.after.report[counter] - self.before.report[counter])

    def eager_steps(self) -> dict[str, int]:
        """Eager steps of this round by reason, without reasons that had none."""
        before = self.before.report["steps_eager"]
        after = self.after.report["steps_eager"]
        steps = {reason: int(after[reason] - before[reason]) for reason in after}
        return {reason: count for reason, count in steps.items() if count}

    def figures(self) -> dict[str, object]:
        """The row of this round, as plain data."""
        return {
            "request_rate": self.request_rate,
            "completed": self.completed,
            "failed": self.failed,
            "output_tokens_per_s": round(self.output_tokens_per_s, 1),
            "steps_replayed": self.steps("steps_replayed"),
            "steps_verified": self.steps("steps_verified"),
            "steps_eager": self.eager_steps(),
            "missing_recordings": self.eager_steps().get("MISSING_RECORDING", 0),
            "gpu_mib_before": round(self.before.gpu_bytes / MIB, 1),
            "host_mib_before": round(self.before.host_bytes / MIB, 1),
        }


def load_command(model: Path, url: str, rate: str, seed: int, out: Path) -> list[str]:
    """The command line of the client: prompts of 25 to 999 tokens, answers of 6 to
    250, as the client ignores ends of text for random prompts.
    """
    command = [*VLLM, "bench", "serve", "--model", str(model), "--base-url", url]
    command += ["--dataset-name", "random", "--seed", str(seed), "--temperature", "0"]
    command += ["--random-input-len", "512", "--random-output-len", "128"]
    command += ["--random-range-ratio", "0.95", "--num-prompts", str(ROUNDS[rate])]
    command += ["--request-rate", rate, "--max-concurrency", str(MAX_NUM_REQS)]
    command += ["--disable-tqdm", "--save-result", "--result-dir", str(out.parent)]
    return [*command, "--result-filename", out.name]


def rounds_of(server: Server, model: Path, minutes: float) -> Iterator[Round]:
    """Rounds until the minutes are over, two at least; raises ServerError if one
    gives no figures, or the server is gone after it.
    """
    deadline, before = time.monotonic() + 60 * minutes, server.sample()
    for index, rate in enumerate(cycle(ROUNDS)):
        if index >= 2 and time.monotonic() > deadline:
            return
        load = run_client(server, model, index, rate)
        counts = f"{load['completed']} requests completed, {load['failed']} failed"
        try:
            after = server.sample()
        except ServerError as error:
            raise ServerError(f"round {index} ({counts}): {error}") from None
        throughput = load["output_throughput"]
        yield Round(rate, load["completed"], load["failed"], throughput, before, after)
        before = after


def run_client(server: Server, model: Path, index: int, rate: str) -> dict[str, Any]:
    """The client's figures of one round; raises ServerError if it gave none."""
    out = model / f"round-{index}.json"
    command = load_command(model, server.url, rate, index, out)
    log = server.log.with_suffix(".client.log")
    with log.open("a") as stream, suppress(subprocess.TimeoutExpired):
        subprocess.run(
            command,
            env=os.environ | ENVIRONMENT,
            stdout=stream,
            stderr=subprocess.STDOUT,
            timeout=ROUND_S,
            check=False,
        )
    if not out.exists():
        raise server.error(f"round {index}: the client gave no figures, see {log}")
    figures: dict[str, Any] = json.loads(out.read_text())
    return figures


def faults(rounds: Sequence[Round], mode: str) -> Iterator[str]:
    """What the rounds show that must not be, one sentence each."""
    if failed := sum(it.failed for it in rounds):
        yield f"{failed} requests failed, but should be none."
    if not rounds:
        return
    report = rounds[-1].after.report
    replayed, verified = report["steps_replayed"], report["steps_verified"]
    why = report["left_alone"] or "see the start-up table in the log"
    if not replayed:
        yield f"No step was replayed: {why}."
    elif mode == "verify" and verified != replayed:
        yield f"{verified} steps were verified, but should be all {replayed} replayed."
    if not all(it.completed for it in rounds):
        yield "A round completed no request."
    for reason in ("MISSING_RECORDING", "CAPTURE_REFUSED"):
        if eager := report["steps_eager"].get(reason, 0):
            yield f"{eager} steps were eager as {reason}, but should be none."
    yield from memory_faults(rounds[0].after, rounds[-1].after)


def memory_faults(first: Sample, last: Sample) -> Iterator[str]:
    """What grew from the end of the first round to that of the last."""
    grown = last.gpu_bytes - first.gpu_bytes
    if grown > GPU_GROWTH:
        yield f"GPU memory grew by {grown / MIB:.1f} MiB, but should by 1 at most."
    share = last.host_bytes / first.host_bytes - 1
    if share > HOST_GROWTH:
        yield f"Host memory grew by {share:.1%}, but should by 5 % at most."


def table_of(rounds: Sequence[Round]) -> Table:
    """A row a round."""
    rows = [it.figures() for it in rounds]
    table = Table(title="Rounds")
    for column in rows[0] if rows else ():
        table.add_column(column.replace("_", " "))
    for row in rows:
        table.add_row(
            *(str(value).strip("{}").replace("'", "") for value in row.values())
        )
    return table


def options_of(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--mode", choices=("verify", "replay"), default="verify")
    parser.add_argument("--model-shape", default="qwen3-0.6b")
    parser.add_argument(
        "--backend", help="vLLM's attention backend, such as FLASH_ATTN"
    )
    parser.add_argument("--out", type=Path, default=Path("server-soak.json"))
    return parser.parse_args(arguments)


def main() -> int:
    """Serve, load, judge; 1 if anything is at fault."""
    options, console = options_of(), Console(width=160)
    rounds: list[Round] = []
    problems: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder)
        write_model(options.model_shape, model)
        write_tokenizer(model)
        log = options.out.with_suffix(".log")
        try:
            with serving(Server(model, options.mode, options.backend, log)) as server:
                for it in rounds_of(server, model, options.minutes):
                    rounds.append(it)
                    console.print(it.figures())
        except ServerError as error:
            problems.append(str(error))
    problems += faults(rounds, options.mode)
    write_figures(options, rounds, problems)
    console.print(table_of(rounds))
    for problem in problems:
        console.print(problem, markup=False, highlight=False, soft_wrap=True)
    return 1 if problems else 0


def write_figures(
    options: argparse.Namespace, rounds: Sequence[Round], problems: Sequence[str]
) -> None:
    """The same as JSON."""
    figures = {
        "date": time.strftime("%Y-%m-%d"),
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "options": {name: str(value) for name, value in vars(options).items()},
        "rounds": [it.figures() for it in rounds],
        "at_the_end": asdict(rounds[-1].after) if rounds else None,
        "problems": list(problems),
    }
    options.out.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    sys.exit(main())
