"""The prover's verdict on a builder of one's own, and the source lines behind it."""

import linecache
import os
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from graphparity.command.builder_address import builder_at, told_as_the_callers
from graphparity.command.errors import CommandError
from graphparity.conformance.builders.cases import CASES
from graphparity.conformance.builders.factory_build import FactoryBuild
from graphparity.conformance.builders.judging import judge_case
from graphparity.conformance.vllm_on_cpu.platform import require_supported_vllm
from graphparity.fastpath.capture_ladder import CaptureLadder
from graphparity.fastpath.graph_key import keys_to_record
from graphparity.fastpath.group_build import GroupBuild
from graphparity.fastpath.prover import judge
from graphparity.fastpath.proving.verdict import Level, Refusal, Verdict
from graphparity.fastpath.recorders import EmulatedRecorder, Recorder
from graphparity.reference.interface import CUDAGraphMode

BLOCK_SIZE = 8
DEVICE = torch.device("cpu:0")
_LINES_AROUND = 2


def judged(
    address: str, query_len: int, max_num_reqs: int, max_model_len: int, level: str
) -> Verdict:
    """The verdict on the builder at ``address``, over a ladder of powers of two; or on
    a builder of vLLM by its name in docs/builders.md, in the deployment of that case.

    Raises:
        CommandError: there is no builder there, or its code raises.
    """
    if address in CASES:
        return _judged_case(address, Level(level))
    builder = builder_at(address, DEVICE)
    powers = [2**power for power in range(max_num_reqs.bit_length())]
    sizes = tuple(query_len * rung for rung in {*powers, max_num_reqs})
    keys = keys_to_record(
        CaptureLadder(sizes, max_num_reqs).dispatch,
        max_num_reqs=max_num_reqs,
        query_lens=[query_len],
        full_mode=CUDAGraphMode.FULL,
    )
    with told_as_the_callers(f"a build of {address} raised"):
        build = FactoryBuild(builder, DEVICE, keys[0], max_model_len, BLOCK_SIZE)
        return judge(
            build,
            keys,
            _recorder_of,
            max_model_len=max_model_len,
            max_num_reqs=max_num_reqs,
            level=Level(level),
        )


def _judged_case(name: str, level: Level) -> Verdict:
    """The verdict on a builder of vLLM; what vLLM logs goes to stderr."""
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    try:
        require_supported_vllm()
    except RuntimeError as error:
        raise CommandError(str(error)) from error
    return judge_case(name, level=level)


def verdict_as_dict(verdict: Verdict) -> dict[str, Any]:
    """What the verdict's own JSON lacks: the source line of a refusal."""
    refusal = verdict.refusal
    return {"source_line": _line_at(refusal.location) if refusal else None}


def print_verdict(verdict: Verdict, out: Console) -> None:
    """Print what was found, and for a refusal where and on which batches."""
    words = "may be recorded" if verdict.recordable else "must stay eager"
    out.print(f"{verdict.builder} {words}.", markup=False, soft_wrap=True)
    if verdict.refusal is not None:
        _print_refusal(verdict.refusal, out)
        return
    for name in verdict.in_place_inputs:
        out.print(f"It changes {name} in place, as eager builds do.", markup=False)
    table = Table("field", "on replay", "why", box=SIMPLE_HEAD, pad_edge=False)
    for it in verdict.fields:
        table.add_row(it.path, it.field_class.name.lower(), it.reason)
    out.print(table)
    out.print(
        "Builds of one key were compared: what a builder keeps from one step to the "
        "next is seen by graphparity.conformance.conforms, which replays histories.",
        soft_wrap=True,
    )


def _print_refusal(refusal: Refusal, out: Console) -> None:
    rows = {
        "because": refusal.reason,
        "not met": f"{refusal.check.name}: {refusal.check.value}",
        "operation": refusal.operation,
        "field": refusal.field,
        "at": refusal.location,
    }
    for name, text in rows.items():
        if text:
            out.print(f"{name:>10}  {text}", markup=False, soft_wrap=True)
    for line in source_around(refusal.location):
        out.print(f"{'':>10}  {line}", markup=False, soft_wrap=True)
    out.print(f"{'key':>10}  {refusal.key}", markup=False, soft_wrap=True)
    batches = refusal.batches
    lens = f"{list(batches.recorded.seq_lens)}, {list(batches.replayed.seq_lens)}"
    out.print(f"{'seq_lens':>10}  recorded, replayed: {lens}", markup=False)


def source_around(location: str) -> list[str]:
    """The lines around ``file:line``, numbered, the line itself marked."""
    file, _, number = location.rpartition(":")
    if not number.isdecimal():
        return []
    around = range(int(number) - _LINES_AROUND, int(number) + _LINES_AROUND + 1)
    return [
        f"{'>' if it == int(number) else ' '} {it:4} {text}"
        for it in around
        if (text := linecache.getline(file, it).rstrip())
    ]


def _line_at(location: str) -> str:
    file, _, number = location.rpartition(":")
    return linecache.getline(file, int(number)).strip() if number.isdecimal() else ""


def _recorder_of(build: GroupBuild) -> Recorder:
    memory = {**build.inputs, **build.outputs}
    return EmulatedRecorder(DEVICE, memory.values())
