"""Engines of several ranks: how their workers are made, and what each rank tells.

A rank is a process of vLLM's multiprocess executor. It is forked from the engine's
process, and so has its FULL graphs, its weights, its builders and its recorder.
"""

# ruff: noqa: PLC0415, vLLM is imported once this process is prepared for it
import gc
import os
from functools import cache
from typing import Any

from graphparity.conformance.full_on_cpu.notes import NOTES

HEADS = {"num_attention_heads": 4, "num_key_value_heads": 4}
"""Of the model of several ranks: each of up to four has a head of its own."""


@cache
def fork_workers() -> None:
    """Let ranks be forked, and let them speak over gloo; idempotent.

    The CPU platform asks for spawned workers, which would know nothing of what this
    process was given; vLLM's own default is to fork. Its shared-memory collectives
    wait in a loop, for which every rank needs a core.
    """
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
    from vllm.platforms.cpu import CpuPlatform

    check = CpuPlatform.check_and_update_config

    def forking(cls: Any, vllm_config: Any) -> None:
        check(vllm_config)
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"

    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
    CpuPlatform.check_and_update_config = classmethod(forking)
    CpuCommunicator._all_group_ranks_share_shm_group_name = lambda self: False
    _import_for_all()


def _import_for_all() -> None:
    """Import the engine once, and keep it out of collections: vLLM makes many in every
    rank, and each would walk through all that was imported.
    """
    import vllm.entrypoints.llm
    import vllm.v1.worker.cpu.model_runner  # noqa: F401

    # Else vLLM gives up what is kept out, after its first capture.
    os.environ["VLLM_ENABLE_CUDAGRAPH_GC"] = "1"
    gc.freeze()


def wait_for_steps(seconds: int) -> None:
    """Let the engines of this process wait that long for a step of their ranks."""
    os.environ["VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"] = str(seconds)


def note_serving(worker: Any, is_serving: bool) -> None:
    """On a rank: requests are served from now on, or no more."""
    del worker
    if is_serving:
        NOTES.begin_wave()
    else:
        NOTES.is_serving = False


def told_by_ranks(llm: Any, *, has_plug_in: bool) -> list[dict[str, Any]]:
    """What each rank was seen to do, and the report of its plug-in, in rank order."""
    notes: list[dict[str, Any]] = llm.collective_rpc(_notes_of)
    if not has_plug_in:
        return notes
    reports = llm.collective_rpc("graphparity_report")
    return [
        note | {"report": report} for note, report in zip(notes, reports, strict=True)
    ]


def _notes_of(worker: Any) -> dict[str, Any]:
    return NOTES.as_dict() | {"rank": worker.rank}
