"""The subclass that the plug-in puts in the place of a vLLM model state."""

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from graphparity.fastpath.fresh_replays import FreshReplays
from graphparity.fastpath.graph_key import GraphKey
from graphparity.fastpath.partial_build import GroupSplit
from graphparity.fastpath.proving.verdict import Field, Verdict
from graphparity.fastpath.seams import Seam
from graphparity.fastpath.specialize import Specialization, specialize
from graphparity.fastpath.vllm_plugin.configuration import Mode, PluginConfig
from graphparity.fastpath.vllm_plugin.counter_log import CounterLog
from graphparity.fastpath.vllm_plugin.draft_builds import DraftBuilds
from graphparity.fastpath.vllm_plugin.draft_decodes import (
    DraftDecodes,
    drafts_in_steps,
    why_no_builds,
)
from graphparity.fastpath.vllm_plugin.group_judge import judge_groups
from graphparity.fastpath.vllm_plugin.host_readers import keys_read_on_host
from graphparity.fastpath.vllm_plugin.recorder import CaptureRecorder, RecorderFactory
from graphparity.fastpath.vllm_plugin.report import (
    GroupReport,
    counter_line,
    start_up_table,
)
from graphparity.fastpath.vllm_plugin.runner_link import RunnerKeys, runner_keys
from graphparity.fastpath.vllm_plugin.state_report import group_report, report_of
from graphparity.fastpath.vllm_plugin.tied_groups import tied_groups
from graphparity.fastpath.vllm_plugin.verify import VerifyingModelState
from graphparity.fastpath.vllm_plugin.verify_drafts import VerifiedDraftBuilds

logger = logging.getLogger(__name__)


class Plugged:
    """What a plugged-in state has besides its base: how it records, and what it did."""

    def __init__(
        self, name: str, config: PluginConfig, make_recorder: RecorderFactory
    ) -> None:
        self.name, self.config = name, config
        self.recorder = CaptureRecorder(make_recorder)
        self.keys = RunnerKeys(())
        self.verdicts: Mapping[int, Verdict] = {}
        self.groups: Sequence[GroupReport] = ()
        self.written_paths: frozenset[str] = frozenset()
        """Builder tensors that eager builds were seen to write."""
        self.capture_s = self.judge_s = 0.0
        self.memory_bytes = 0
        self.counter_log: CounterLog | None = None
        self.lock = threading.RLock()
        """Held while recordings come and go: the log reads them in its own thread."""
        self.drafts: DraftBuilds | None = None
        """The recorded builds of a draft model's own decode steps."""
        self.why_no_drafts = ""
        """Why a draft model has none; "" without a draft model."""
        self.draft_memory_bytes = 0
        self._runner: Any = None
        self._is_profile = self._has_captured = False

    @contextmanager
    def capture_of(self, runner: Any, *, is_profile: bool) -> Iterator[None]:
        """The runner's capture: it is at hand within, and reports wait for its end."""
        with self.lock, self._capture_of(runner, is_profile=is_profile):
            yield

    @contextmanager
    def _capture_of(self, runner: Any, *, is_profile: bool) -> Iterator[None]:
        """As ``capture_of``.

        What memory profiling recorded was measured when its capture returns; it is
        released there, before the real KV cache is allocated, and so is the recorder,
        with its graph pool.
        """
        self._runner, self._is_profile, self._has_captured = runner, is_profile, False
        self.recorder.begin(runner)
        try:
            with self._drafts_recorded_by(runner):
                yield
            if self._has_captured and not is_profile:
                runner.model_state.finish_capture(runner)
            elif not self._has_captured:
                logger.warning(
                    "graphparity records nothing of %s: vLLM captures no graph of its "
                    "decode steps; its log says why.",
                    self.name,
                )
        finally:
            self._runner = None
            if is_profile:
                runner.model_state.graphs.release()
                self.release_drafts()
                self.recorder.drop()
                self.groups, self.verdicts = (), {}

    @contextmanager
    def _drafts_recorded_by(self, runner: Any) -> Iterator[None]:
        """A draft model's own builds are recorded once its graphs are captured, inside
        of the runner's capture, which measures its memory.
        """
        self.release_drafts()
        speculator: Any = getattr(runner, "speculator", None)
        if not drafts_in_steps(speculator):
            yield
            return
        capture = speculator.capture

        def capture_and_record() -> None:
            capture()
            self._record_drafts(runner, speculator)

        vars(speculator)["capture"] = capture_and_record
        try:
            yield
        finally:
            del vars(speculator)["capture"]

    def _record_drafts(self, runner: Any, speculator: Any) -> None:
        self.why_no_drafts = why_no_builds(speculator)
        if self.why_no_drafts:
            return
        is_verified = self.config.mode is Mode.VERIFY
        kind = VerifiedDraftBuilds if is_verified else DraftBuilds
        free_before = self.free_memory()
        self.drafts = kind(
            DraftDecodes(speculator, runner),
            self.recorder.make_recorder,
            self.config.level,
        )
        self.drafts.record(can_judge=runner.kv_cache_config.num_blocks > 1)
        self.draft_memory_bytes = max(free_before - self.free_memory(), 0)

    def release_drafts(self) -> None:
        """Drop the recordings of a draft model, if there are any."""
        if self.drafts is not None:
            self.drafts.release()
        self.drafts, self.draft_memory_bytes = None, 0

    @property
    def shares_rungs(self) -> bool:
        """Whether every group that is recorded was seen to build alike in a rung."""
        recorded = [it for it in self.verdicts.values() if it.recordable]
        return bool(recorded) and all(it.shares_rungs for it in recorded)

    @property
    def fields(self) -> dict[str, Field]:
        """What the prover found of every metadata leaf, by path."""
        return {
            it.path: it for verdict in self.verdicts.values() for it in verdict.fields
        }

    @property
    def is_profile(self) -> bool:
        """Whether the capture in progress is that of memory profiling."""
        return self._is_profile

    def runner_keys(self) -> tuple[GraphKey, ...]:
        """The keys that the capturing runner's own dispatch will ask for."""
        self._has_captured = True
        self.keys = runner_keys(self._runner)
        return self.keys.own

    def judge(self, state: Any) -> dict[int, bool]:
        """KV-cache group index -> whether its build may be recorded.

        Profiling may run with a KV cache of the null block alone, over which no step
        can be staged: all are recorded then, so that their memory is counted.
        """
        if self._is_profile and self._runner.kv_cache_config.num_blocks < 2:
            return dict.fromkeys(range(len(self._runner.attn_groups)), True)
        begin = time.perf_counter()
        judged = judge_groups(
            state,
            self._runner,
            self.keys.own,
            self.recorder.make_recorder,
            self.config.level,
            self.keys.padded_for_other_ranks,
        )
        self.judge_s = time.perf_counter() - begin
        self.verdicts = {index: verdict for index, (_, verdict) in judged.items()}
        self.written_paths = frozenset(
            path for build, _ in judged.values() for path in build.outputs
        )
        self.groups = tuple(
            group_report(index, verdict, self._runner.attn_groups[index])
            for index, verdict in self.verdicts.items()
        )
        return {index: it.recordable for index, it in self.verdicts.items()}

    def tied_groups(self, attn_groups: list[list[Any]]) -> list[tuple[int, ...]]:
        """KV-cache groups that must build in serial order."""
        return tied_groups(attn_groups, self._runner.device, self.written_paths)

    def note_eager_groups(self, refused: Sequence[int]) -> None:
        """Say of groups that passed, and are eager all the same, why they are."""
        reason = "its table is shared with a refused group"
        self.groups = tuple(
            replace(group, is_recorded=False, reason=reason)
            if group.is_recorded and group.index in refused
            else group
            for group in self.groups
        )

    def free_memory(self) -> int:
        """Free bytes of the runner's device, as vLLM measures graph memory."""
        free: int = torch.accelerator.get_memory_info()[0]
        return free


class PluggedModelState(FreshReplays):
    """Mixed in before every specialized state of the plug-in."""

    plugged: Plugged
    _split: GroupSplit
    _plugged_as: tuple[str, PluginConfig, RecorderFactory]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.plugged = Plugged(*self._plugged_as)
        super().__init__(*args, **kwargs)

    def initialize_kv_cache(self, kv_cache_config: Any, block_tables: Any) -> None:
        """Adopt a newly allocated KV cache; recordings of the last one are dropped."""
        base: Any = super()
        with self.plugged.lock:
            base.initialize_kv_cache(kv_cache_config, block_tables)
            self.plugged.release_drafts()

    def capture_inner_cudagraphs(
        self,
        input_buffers: Any,
        block_tables: Any,
        attn_groups: list[list[Any]],
        kv_cache_config: Any,
    ) -> None:
        """Record, and measure it."""
        plugged, base = self.plugged, super()
        free_before, begin = plugged.free_memory(), time.perf_counter()
        capture: Any = base
        capture.capture_inner_cudagraphs(
            input_buffers, block_tables, attn_groups, kv_cache_config
        )
        plugged.note_eager_groups(self._split.refused)
        plugged.capture_s = time.perf_counter() - begin
        plugged.memory_bytes = max(free_before - plugged.free_memory(), 0)

    def finish_capture(self, runner: Any) -> None:
        """See who will read the metadata of replayed steps, now that all is captured,
        and show the start-up table.
        """
        plugged = self.plugged
        self.make_anew(
            keys_read_on_host(runner, self.graphs.recordings), plugged.fields
        )
        self._forget_captures()
        logger.info("%s", start_up_table(report_of(self)))
        if plugged.counter_log is None:
            plugged.counter_log = CounterLog(
                self, _counter_line, plugged.config.log_interval_s
            )
        plugged.counter_log.start()

    def _forget_captures(self) -> None:
        """Steps counted so far are the engine's own: warm-ups and captures."""
        drafts = self.plugged.drafts
        for graphs in (self.graphs, *([drafts.graphs] if drafts else [])):
            graphs.num_replayed = 0
            graphs.eager_steps.clear()


def plug(
    state_cls: type[Any],
    seam: Seam,
    config: PluginConfig,
    make_recorder: RecorderFactory,
) -> type[Any]:
    """The subclass of ``state_cls`` that records and replays as ``config`` says."""
    from vllm.config.compilation import CUDAGraphMode  # noqa: PLC0415

    specialization = Specialization(
        full_mode=CUDAGraphMode.FULL,
        make_recorder=lambda state: state.plugged.recorder,
        graph_keys=lambda state: state.plugged.runner_keys(),
        keys_padded_for_other_ranks=lambda state: (
            state.plugged.keys.padded_for_other_ranks
        ),
        seam=seam,
        judge_groups=lambda state, attn_groups: state.plugged.judge(state),
        shares_rungs=lambda state: state.plugged.shares_rungs,
        forking=config.fork,
        tied_groups=lambda state, groups: state.plugged.tied_groups(groups),
    )
    bases: list[type[Any]] = [PluggedModelState, specialize(state_cls, specialization)]
    members: dict[str, Any] = {
        "_plugged_as": (_qualified_name(state_cls), config, make_recorder),
        "__doc__": f"{state_cls.__qualname__} with recorded metadata builds.",
        "__module__": state_cls.__module__,
    }
    if config.mode is Mode.VERIFY:
        bases.insert(0, VerifyingModelState)
        members[seam.build_method] = VerifyingModelState._replay_or_build
    return type(f"Plugged{state_cls.__name__}", tuple(bases), members)


def _counter_line(state: Any) -> str:
    return counter_line(report_of(state))


def _qualified_name(state_cls: type[Any]) -> str:
    return f"{state_cls.__module__}.{state_cls.__qualname__}"
