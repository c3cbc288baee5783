"""The plug-in over vLLM's real model states and builders, without an engine.

The judge stages its steps in the runner's own buffers, what may be recorded is
recorded, and random decode steps run in mode ``verify``. Every recorder starts with a
cold JIT cache, so captures launch what their own warm-ups launched, and nothing else.
Collected only for subjects of vLLM, whose process has it set up.
"""

import importlib
from collections.abc import Sequence
from functools import cache, partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import Phase, given, settings

from graphparity.conformance.decode_batches import DecodeBatch, decode_batches
from graphparity.conformance.staging import stage
from graphparity.conformance.subjects.registry import load_subject
from graphparity.conformance.subjects.subject import Subject
from graphparity.conformance.vllm_on_cpu.memory import device_memory, rotating_memory
from graphparity.fastpath.fork_decision import Forking
from graphparity.fastpath.fresh_replays import FreshReplays
from graphparity.fastpath.graph_key import GraphKey
from graphparity.fastpath.recorders import EmulatedRecorder
from graphparity.fastpath.vllm_plugin.configuration import Mode, PluginConfig
from graphparity.fastpath.vllm_plugin.model_state import Plugged, plug
from graphparity.fastpath.vllm_plugin.rank_agreement import VerifyError
from graphparity.fastpath.vllm_plugin.runner_link import runner_keys
from graphparity.fastpath.vllm_plugin.seam_table import seam_of
from graphparity.fastpath.vllm_plugin.state_report import report_of

pytestmark = pytest.mark.emulated_recorder_only

FORKED = {"deepseek-v41-hopper:1": 4, "mamba-hybrid-mamba2:1": 2}
"""Subjects whose builds are recorded as branches, and how many of them there are."""


@cache
def _recorded(name: str) -> tuple[Subject, Any]:
    """A subject, and its plugged-in state as one of two data-parallel ranks."""
    subject = load_subject(name)
    fork = Forking.ALWAYS if name in FORKED else Forking.MEASURED
    config = PluginConfig(mode=Mode.VERIFY, log_interval_s=0, fork=fork)
    return subject, _recorded_state(subject, config)


def _verify(
    subject: Subject, state: Any, keys: Sequence[GraphKey], examples: int
) -> int:
    """Run random steps of each key; the number of steps."""
    steps = 0
    for key in keys:

        @settings(max_examples=examples, phases=[Phase.generate])
        @given(batch=decode_batches(subject.limits, key))
        def check(batch: DecodeBatch) -> None:
            nonlocal steps
            stage(subject, batch).run(subject, state)
            steps += 1

        check()
    return steps


def _shares(name: str) -> bool:
    """Builds of attention and of hybrids do not depend on a rung's real requests,
    DeepSeek-V4.1's do.
    """
    return name.startswith(("default-", "mamba-hybrid-"))


def test_every_group_is_recorded_and_verified(shortest_subject: str) -> None:
    """All keys and groups; each random step is replayed and equals the eager build.
    Where builds fork, the branches' own maps are no difference.
    """
    subject, state = _recorded(shortest_subject)
    before, keys = report_of(state), subject.graph_keys
    assert before.fork.num_branches == FORKED.get(shortest_subject, 1)
    shares = _shares(shortest_subject)
    rungs = {key.rung for key in keys}
    assert before.num_graphs == len(rungs if shares else keys)
    assert [group.is_recorded for group in before.groups] == [
        True for groups in subject.attn_groups if groups
    ]
    steps = _verify(subject, state, keys, examples=2)
    report = report_of(state)
    assert report.steps_verified - before.steps_verified == steps
    assert report.steps_replayed - before.steps_replayed == steps


def test_steps_padded_for_a_larger_rank_are_verified(shortest_subject: str) -> None:
    """Where a recording serves a rung, it serves ten random batches of every number of
    requests; elsewhere they are built eagerly, under a reason of their own.
    """
    subject, state = _recorded(shortest_subject)
    before, shares = report_of(state), _shares(shortest_subject)
    keys = state.plugged.keys.padded_for_other_ranks
    assert before.num_keys == len(subject.graph_keys) + len(keys) > len(keys) > 0
    assert before.num_left_eager == (0 if shares else len(keys))
    assert before.num_recorded == before.num_keys - before.num_left_eager
    steps = _verify(subject, state, keys if shares else keys[-1:], examples=10)
    report = report_of(state)
    verified = report.steps_verified - before.steps_verified
    assert verified == report.steps_replayed - before.steps_replayed
    assert verified == (steps if shares else 0)
    assert report.steps_eager["LARGER_RANK"] == (0 if shares else steps)
    assert steps >= 10


@pytest.mark.parametrize("refused", [0, 1, 3])
def test_steps_with_a_group_built_eagerly_are_verified(
    shortest_subject: str, refused: int
) -> None:
    """Its own map of tokens to requests is no difference."""
    subject = load_subject(shortest_subject)
    if refused >= len(subject.attn_groups):
        pytest.skip(f"{shortest_subject} has no group {refused}")

    def judge(plugged: Plugged, state: Any) -> dict[int, bool]:
        verdicts = sound(plugged, state)
        return {**verdicts, refused: False}

    sound = Plugged.judge
    with mock.patch.object(Plugged, "judge", judge):
        state = _recorded_state(subject, PluginConfig(mode=Mode.VERIFY))
    keys = [key for key in subject.graph_keys if key.num_reqs in (2, 3)]
    assert state._split.refused == (refused,)
    steps = _verify(subject, state, keys, examples=2)
    assert report_of(state).steps_verified == steps == 4


def test_a_model_keeps_its_own_decode_executor(shortest_subject: str) -> None:
    """It is built when the plugged-in state is, hence after the weights are loaded and
    before memory is profiled, and prepared for every KV cache, profiling's and the real
    one.
    """
    if not shortest_subject.startswith("mamba-hybrid-"):
        pytest.skip("Kimi K3's state, which brings an executor, is a hybrid's")
    kimi_k3 = importlib.import_module("vllm.models.kimi_k3.nvidia.model_state")
    subject = load_subject(shortest_subject)
    eager: Any = subject.eager_state
    seam = seam_of(kimi_k3.KimiK3ModelState).seam
    assert seam is not None

    def no_recorder(runner: Any) -> EmulatedRecorder:
        raise AssertionError("nothing is captured here")

    plugged_cls = plug(
        kimi_k3.KimiK3ModelState, seam, PluginConfig(mode=Mode.REPLAY), no_recorder
    )
    model = ModelWithExecutor()
    state = plugged_cls(eager.vllm_config, model, None, eager.device)
    assert model.calls == ["build_specialized_decode"]
    for _ in range(2):
        state.initialize_kv_cache(subject.kv_cache_config, subject.block_tables)
    assert model.calls[1:] == ["prepare_kv"] * 2


class ModelWithExecutor(torch.nn.Module):
    """What Kimi K3's state asks of its model."""

    specialized_decode_config = object()

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.specialized_decode: Any = None

    def build_specialized_decode(self) -> None:
        """Build the executor."""
        self.calls.append("build_specialized_decode")
        prepare_kv = partial(self.calls.append, "prepare_kv")
        self.specialized_decode = SimpleNamespace(prepare_kv=prepare_kv)


def test_ranks_agree_on_known_keys(shortest_subject: str) -> None:
    """Of two data-parallel ranks, vLLM's own agreement over the subject's own graphs
    asks for the keys that are known, and for each of them.
    """
    subject = load_subject(shortest_subject)
    keys = runner_keys(_runner(subject, state=None))
    asked = set()
    for here in range(1, subject.limits.max_num_reqs + 1):
        for there in range(1, subject.limits.max_num_reqs + 1):
            asked |= _agreed_key(subject, here, there)
    assert asked == {*keys.own, *keys.padded_for_other_ranks}
    assert set(keys.own) == set(subject.graph_keys)


def test_metadata_that_a_draft_reads_is_made_anew(shortest_subject: str) -> None:
    """Before an eager draft prefill, every host bound is the step's own, and every
    object is new.
    """
    subject, state = _read_by_a_draft(shortest_subject)
    report = report_of(state)
    assert report.num_made_anew == report.num_recorded >= len(subject.graph_keys)
    before = state.num_verified
    steps = _verify(subject, state, subject.graph_keys[:2], examples=2)
    assert state.num_verified - before == report_of(state).steps_replayed == steps


def test_a_draft_that_reads_frozen_bounds_is_caught(shortest_subject: str) -> None:
    """Planted: the recording's own metadata is handed out. Metadata that carries no
    bound has none to freeze.
    """
    subject, state = _read_by_a_draft(shortest_subject)
    if not any(field.is_longest for field in state.plugged.fields.values()):
        pytest.skip("no metadata of this subject carries a bound")
    with (
        mock.patch.object(FreshReplays, "_made_anew", _as_captured),
        pytest.raises(VerifyError, match=r"max_seq_len: \d+, but should be \d+"),
    ):
        _verify(subject, state, subject.graph_keys[:1], examples=2)


def _as_captured(self: Any, replayed: Any, input_batch: Any) -> Any:
    return replayed


def test_a_tile_schedule_handed_out_twice_is_caught(shortest_subject: str) -> None:
    """Planted: the object that FlashMLA fills is the recording's in every step."""
    if not shortest_subject.startswith("deepseek-v41-hopper"):
        pytest.skip("no metadata of this subject has tile schedules")
    subject, state = _read_by_a_draft(shortest_subject)
    made_anew = FreshReplays._made_anew

    def sharing(self: Any, replayed: Any, input_batch: Any) -> Any:
        made = made_anew(self, replayed, input_batch)
        recorded = replayed["sliding_window"]
        made["sliding_window"].tile_sched_swaonly = recorded.tile_sched_swaonly
        return made

    with (
        mock.patch.object(FreshReplays, "_made_anew", sharing),
        pytest.raises(VerifyError, match="tile_sched_swaonly: the last step's object"),
    ):
        _verify(subject, state, subject.graph_keys[:1], examples=2)


def _read_by_a_draft(name: str) -> tuple[Subject, Any]:
    """The same, with a draft model whose prefills have no graphs."""
    subject, state = _recorded(name)
    state.finish_capture(_runner(subject, state, _eager_draft()))
    return subject, state


def _agreed_key(subject: Subject, here: int, there: int) -> set[GraphKey]:
    """The key of a step of ``here`` requests next to a rank of ``there``; none if no
    FULL graph serves them.
    """
    from vllm.v1.worker.gpu import dp_utils  # noqa: PLC0415

    query_len, dispatch = subject.limits.query_len, subject.dispatch

    def all_reduce(votes: torch.Tensor) -> None:
        """Add the vote of rank 1."""
        mode: Any = dispatch(there, there * query_len, query_len, 0).cg_mode
        num_tokens, max_query_len = there * query_len, query_len
        vote = [num_tokens, mode.value, query_len, max_query_len, 0, there, 0]
        votes[:, 1] += torch.tensor(vote)

    group = SimpleNamespace(cpu_all_reduce_=all_reduce)
    with mock.patch.object(dp_utils, "get_dp_group", return_value=group):
        desc, _ = dp_utils.dispatch_cg_and_sync_dp(
            SimpleNamespace(dispatch=dispatch),
            here,
            here * query_len,
            query_len,
            dp_size=2,
            dp_rank=0,
            max_query_len=query_len,
        )
    if desc.cg_mode is not subject.cudagraph_modes.FULL:
        return set()
    return {GraphKey(here, desc.num_reqs, here * query_len, desc.num_tokens)}


def _recorded_state(subject: Subject, config: PluginConfig) -> Any:
    """The plugged-in state in the place of the subject's eager one."""
    eager: Any = subject.eager_state
    seam = seam_of(type(eager)).seam
    assert seam is not None

    def emulated_recorder(runner: Any) -> EmulatedRecorder:
        return EmulatedRecorder(
            torch.device("cpu:0"),
            device_memory(runner, runner.model_state).values(),
            rotating_memory=rotating_memory(runner, runner.model_state).values(),
            starts_cold=True,
        )

    plugged_cls = plug(type(eager), seam, config, emulated_recorder)
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


def _eager_draft() -> Any:
    """A draft model whose prefills have no graphs."""
    from vllm.config.compilation import CUDAGraphMode  # noqa: PLC0415
    from vllm.v1.worker.gpu.spec_decode.mtp.speculator import (  # noqa: PLC0415
        MTPSpeculator,
    )

    none = SimpleNamespace(cg_mode=CUDAGraphMode.NONE)
    draft: Any = object.__new__(MTPSpeculator)
    draft.prefill_cudagraph_manager = SimpleNamespace(dispatch=lambda *step: none)
    return draft


def _runner(subject: Subject, state: Any, speculator: Any = None) -> Any:
    """What the plug-in and the recorder read of a ``GPUModelRunner``."""
    from vllm.v1.worker.gpu.kv_connector import NO_OP_KV_CONNECTOR  # noqa: PLC0415

    return SimpleNamespace(
        model_state=state,
        speculator=speculator,
        kv_connector=NO_OP_KV_CONNECTOR,
        cudagraph_manager=SimpleNamespace(dispatch=subject.dispatch),
        max_num_reqs=subject.limits.max_num_reqs,
        dp_size=2,
        decode_query_len=subject.limits.query_len,
        input_buffers=subject.input_buffers,
        block_tables=subject.block_tables,
        req_states=subject.req_states,
        attn_groups=subject.attn_groups,
        kv_cache_config=subject.kv_cache_config,
        device=torch.device("cpu"),
    )
