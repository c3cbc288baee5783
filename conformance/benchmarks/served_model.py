"""A model of random weights behind ``vllm serve``, with the plug-in, for benchmarks.

It runs in processes of its own, through the installed entry point of the plug-in.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import torch

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
START_S = 600
"""Deadline of the server's start."""


class ServerError(RuntimeError):
    """The server, or its client, did not do its work; the message says what it said."""


@dataclass(frozen=True)
class Sample:
    """What holds between two rounds."""

    report: Mapping[str, Any]
    """The plug-in's, of rank 0; its counters count from the server's start."""
    gpu_bytes: int
    host_bytes: int


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
