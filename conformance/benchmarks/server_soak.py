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
- a recording was missing: a step that was eager as ``MISSING_RECORDING``;
- memory grew from the end of the first round, which has the largest batches, to the
  end of the last: what all processes use of the GPU, as the driver counts it, by more
  than 1 MiB, or what is resident on the host of all the server's processes, pages that
  they share counted for each, by more than 5 %.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import torch
from rich.console import Console
from rich.table import Table

from graphparity.conformance.benchmarks.model_shapes import write_model

VLLM = (sys.executable, "-m", "vllm.entrypoints.cli.main")
ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",  # for POST /collective_rpc
    "VLLM_USE_V2_MODEL_RUNNER": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
WORKER = "graphparity.fastpath.vllm_plugin.worker_extension.GraphparityWorker"
COMPILATION = {
    "mode": 0,
    "cudagraph_mode": "FULL_DECODE_ONLY",
    "cudagraph_capture_sizes": [1, 2, 4, 8, 16, 32, 64],
}
MAX_NUM_REQS = 64
ROUNDS = {"inf": 512, "2": 40, "8": 160}
"""Requests a second -> requests of a round. The largest batches come first: what they
make the allocators keep is no growth."""
START_S, ROUND_S = 600, 600
"""Deadlines of the server's start, and of a round."""
MIB = 1 << 20
GPU_GROWTH, HOST_GROWTH = MIB, 0.05
"""What growth may not exceed: bytes of GPU memory, the share of host memory."""


class ServerError(RuntimeError):
    """The server, or its client, did not do its work; the message says what it said."""


@dataclass(frozen=True)
class Sample:
    """What holds between two rounds."""

    report: Mapping[str, Any]
    """The plug-in's, of rank 0; its counters count from the server's start."""
    gpu_bytes: int
    host_bytes: int


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


class Server:
    """``vllm serve`` in a process group of its own, which all its processes share."""

    def __init__(self, model: Path, mode: str, backend: str | None, log: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url, self.log = f"http://127.0.0.1:{port}", log
        with log.open("w") as stream:
            self.process = subprocess.Popen(
                serve_command(model, mode, backend, port),
                env=os.environ | ENVIRONMENT,
                stdout=stream,
                stderr=subprocess.STDOUT,
                process_group=0,
            )

    def wait_until_healthy(self) -> None:
        """Raises ServerError if the server ends, or is not up in ``START_S``."""
        deadline = time.monotonic() + START_S
        while True:
            with suppress(OSError), urlopen(f"{self.url}/health", timeout=5):
                return
            if self.process.poll() is not None:
                raise self.error("the server ended before it was up")
            if time.monotonic() > deadline:
                raise self.error(f"the server was not up in {START_S} s")
            time.sleep(1)

    def sample(self) -> Sample:
        """Counters and memory now; raises ServerError if the server is gone."""
        request = Request(
            f"{self.url}/collective_rpc",
            json.dumps({"method": "graphparity_report"}).encode(),
        )
        try:
            with urlopen(request, timeout=60) as answer:
                report = json.load(answer)["results"][0]
        except OSError as error:
            raise self.error(f"the server does not answer any more ({error})") from None
        free, total = torch.cuda.mem_get_info()
        return Sample(report, total - free, resident_bytes(self.process.pid))

    def error(self, sentence: str) -> ServerError:
        """``sentence`` and what the log says: its VerifyError, or else its end."""
        lines = self.log.read_text(errors="replace").splitlines()
        found = [i for i, line in enumerate(lines) if "VerifyError: " in line]
        shown = lines[found[0] : found[0] + 8] if found else lines[-40:]
        return ServerError("\n".join([f"{sentence}; its log says:", *shown]))

    def stop(self) -> None:
        """End every process of the server."""
        for number, seconds in ((signal.SIGTERM, 60), (signal.SIGKILL, 30)):
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(seconds)


def serve_command(model: Path, mode: str, backend: str | None, port: int) -> list[str]:
    """The command line of the server."""
    command = [*VLLM, "serve", str(model), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--load-format", "dummy", "--max-model-len", "8192"]
    command += ["--max-num-seqs", str(MAX_NUM_REQS), "--disable-uvicorn-access-log"]
    command += ["--gpu-memory-utilization", "0.5"]
    command += ["--compilation-config", json.dumps(COMPILATION)]
    command += ["--additional-config", json.dumps({"graphparity": {"mode": mode}})]
    command += ["--worker-extension-cls", WORKER]
    return command + (["--attention-backend", backend] if backend else [])


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


def write_tokenizer(folder: Path) -> None:
    """A tokenizer of one word a token, for every token of the model in ``folder``:
    decoding and encoding again keeps a prompt's length.
    """
    vocab_size = json.loads((folder / "config.json").read_text())["vocab_size"]
    words = ["<unk>", "</s>", *(f"w{token}" for token in range(2, vocab_size))]
    tokenizer: dict[str, Any] = {
        "version": "1.0",
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {
            "type": "WordLevel",
            "vocab": {word: token for token, word in enumerate(words)},
            "unk_token": words[0],
        },
        **dict.fromkeys(("truncation", "padding", "normalizer", "decoder")),
        "post_processor": None,
        "added_tokens": [],
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": words[1]}
        )
    )


def resident_bytes(group: int) -> int:
    """Resident memory of every process of a group, from /proc/PID/stat (proc(5))."""
    num_pages = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # a process may end meanwhile
            fields = stat.read_text().rpartition(")")[2].split()
            num_pages += int(fields[21]) if int(fields[2]) == group else 0
    return num_pages * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    """The server, up; it is stopped in any case."""
    try:
        server.wait_until_healthy()
        yield server
    finally:
        server.stop()


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
    if missing := report["steps_eager"].get("MISSING_RECORDING", 0):
        yield f"{missing} steps missed their recording, but should be none."
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
