"""Judges the runner's KV-cache groups before they are recorded."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from graphparity.fastpath.builder_memory import (
    builder_memory,
    member_tensors,
)
from graphparity.fastpath.graph_key import GraphKey
from graphparity.fastpath.group_build import GroupBuild
from graphparity.fastpath.prover import judge
from graphparity.fastpath.proving.batches import longest_batch, shortest_batch
from graphparity.fastpath.proving.group_memory import image_of, restore
from graphparity.fastpath.proving.verdict import Level, Verdict
from graphparity.fastpath.recorders.protocol import Recorder
from graphparity.fastpath.vllm_plugin.recorder import RecorderFactory
from graphparity.fastpath.vllm_plugin.runner_group_build import RunnerGroupBuild


def judge_groups(
    state: Any,
    runner: Any,
    keys: Sequence[GraphKey],
    make_recorder: RecorderFactory,
    level: Level,
    keys_padded_for_other_ranks: Sequence[GraphKey] = (),
) -> dict[int, tuple[RunnerGroupBuild, Verdict]]:
    """KV-cache group index -> its build and what the prover says of it.

    The runner's buffers are left as they were. Every capture that the prover makes
    lies in a pool of its own, which is gone with its verdict.
    """

    def recorder_of(build: GroupBuild) -> Recorder:
        del build
        return make_recorder(runner)

    judged = {}
    with _buffers_kept(state, runner):
        for index, groups in enumerate(runner.attn_groups):
            if not groups:
                continue
            build = RunnerGroupBuild(state, runner, index)
            limits = {
                "max_model_len": state.max_model_len,
                "max_num_reqs": runner.max_num_reqs,
            }
            build.find_outputs(_batches(keys, **limits))
            verdict = judge(
                build,
                keys,
                recorder_of,
                level=level,
                keys_padded_for_other_ranks=keys_padded_for_other_ranks,
                **limits,
            )
            judged[index] = build, verdict
    # What the prover's graphs held is no memory of the recordings.
    torch.accelerator.empty_cache()
    return judged


def _batches(
    keys: Sequence[GraphKey], *, max_model_len: int, max_num_reqs: int
) -> Iterator[Any]:
    """Steps that differ in all that a key leaves open, largest key first."""
    for seed, key in enumerate(dict.fromkeys([*keys[:1], *keys[-1:]])):
        yield longest_batch(key, max_model_len, 2 * seed)
        yield shortest_batch(key, max_num_reqs, 2 * seed + 1)
        yield longest_batch(key, max_model_len, 2 * seed)


@contextmanager
def _buffers_kept(state: Any, runner: Any) -> Iterator[None]:
    buffers = member_tensors(state, "model_state", runner.device)
    buffers |= {
        f"input_buffers.{name}": value
        for name, value in vars(runner.input_buffers).items()
        if isinstance(value, torch.Tensor)
    }
    for index, table in enumerate(runner.block_tables.input_block_tables):
        buffers[f"block_tables[{index}]"] = table
    buffers["slot_mappings"] = runner.block_tables.slot_mappings
    before = image_of(buffers)
    owned = builder_memory(runner.attn_groups, runner.device)
    owned_before = image_of(owned)
    try:
        yield
    finally:
        restore(buffers, before)
        restore(owned, owned_before)
