"""The plug-in over vLLM's real model states and builders, without an engine.

The judge stages its steps in the runner's own buffers, what may be recorded is
recorded, and random decode steps run in mode ``verify``. Collected only for subjects
of vLLM, whose process has it set up.
"""

from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings

from graphparity.conformance.decode_batches import DecodeBatch, decode_batches
from graphparity.conformance.staging import stage
from graphparity.conformance.subjects.registry import load_subject
from graphparity.conformance.subjects.subject import Subject
from graphparity.conformance.vllm_on_cpu.memory import device_memory, rotating_memory
from graphparity.fastpath.recorders import EmulatedRecorder
from graphparity.fastpath.vllm_plugin.configuration import Mode, PluginConfig
from graphparity.fastpath.vllm_plugin.model_state import plug, report_of
from graphparity.fastpath.vllm_plugin.seam_table import seam_of

pytestmark = pytest.mark.emulated_recorder_only

CONFIG = PluginConfig(mode=Mode.VERIFY, log_interval_s=0)


def test_every_group_is_recorded_and_verified(shortest_subject: str) -> None:
    """All keys and groups; each random step is replayed and equals the eager build.
    Builds of attention and of hybrids do not depend on a rung's real requests,
    DeepSeek-V4.1's do.
    """
    subject = load_subject(shortest_subject)
    state = _recorded_state(subject)
    report = report_of(state)
    keys = subject.graph_keys
    assert report.num_recorded == report.num_keys == len(keys)
    shares = shortest_subject.startswith(("default-", "mamba-hybrid-"))
    assert report.num_graphs == len({key.rung for key in keys} if shares else keys)
    assert [group.is_recorded for group in report.groups] == [
        True for groups in subject.attn_groups if groups
    ]
    steps = 0
    for key in keys:

        @settings(max_examples=2)
        @given(batch=decode_batches(subject.limits, key))
        def check(batch: DecodeBatch) -> None:
            nonlocal steps
            stage(subject, batch).run(subject, state)
            steps += 1

        check()
    assert report_of(state).steps_verified == report_of(state).steps_replayed == steps


def _recorded_state(subject: Subject) -> Any:
    """The plugged-in state in the place of the subject's eager one."""
    eager: Any = subject.eager_state
    seam = seam_of(type(eager)).seam
    assert seam is not None

    def emulated_recorder(runner: Any) -> EmulatedRecorder:
        return EmulatedRecorder(
            torch.device("cpu:0"),
            device_memory(runner, runner.model_state).values(),
            rotating_memory=rotating_memory(runner, runner.model_state).values(),
        )

    plugged_cls = plug(type(eager), seam, CONFIG, emulated_recorder)
    state = plugged_cls(eager.vllm_config, eager.model, None, eager.device)
    runner = _runner(subject, state)
    with (
        mock.patch.object(torch.accelerator, "empty_cache"),
        state.plugged.capture_of(runner, is_profile=False),
    ):
        state.capture_inner_cudagraphs(
            subject.input_buffers,
            subject.block_tables,
            subject.attn_groups,
            subject.kv_cache_config,
        )
    return state


def _runner(subject: Subject, state: Any) -> Any:
    """What the plug-in and the recorder read of a ``GPUModelRunner``."""
    return SimpleNamespace(
        model_state=state,
        cudagraph_manager=SimpleNamespace(dispatch=subject.dispatch),
        max_num_reqs=subject.limits.max_num_reqs,
        decode_query_len=subject.limits.query_len,
        input_buffers=subject.input_buffers,
        block_tables=subject.block_tables,
        req_states=subject.req_states,
        attn_groups=subject.attn_groups,
        kv_cache_config=subject.kv_cache_config,
        device=torch.device("cpu"),
    )
