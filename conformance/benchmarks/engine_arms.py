"""Eager and replayed metadata builds in one engine, switched from step to step.

The engine runs in mode ``verify`` in this process. An arm is what its model state has
for a while in the place of the members that serve a step: vLLM's own functions, those
of mode ``replay``, or the verifying ones. Only where replay starts are known to be zero
is their upload spared in every arm. The recorded builds of a draft model go with them.
"""

import copy
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import cycle, pairwise
from typing import Any
from unittest import mock

import torch

PrepareAttn = Callable[..., Any]
Arm = Mapping[str, Any]
"""Member of a model state -> what it is for a while; one is ``prepare_attn``."""
DRAFT_BUILD = "draft build"
"""In an arm, what a draft model's speculator builds by, if its builds are recorded."""

SETTLING_STEPS = 4
"""Steps of a block that are not counted: the host runs ahead of the GPU."""


def arms_of(state: Any) -> dict[str, Arm]:
    """The three arms of a plugged-in state whose mode is ``verify``."""
    from graphparity.fastpath.vllm_plugin.verify import (  # noqa: PLC0415
        VerifyingModelState,
    )

    names = ("prepare_attn", state._specialization.seam.build_method)
    vllm_s, replaying = _base_of(state), super(VerifyingModelState, state)
    this: Any = replaying
    drafting = _drafting_arms(state.plugged.drafts)
    serving = _serving_arms(state, names, vllm_s, this)
    return {name: {**serving[name], **drafting.get(name, {})} for name in serving}


def _serving_arms(
    state: Any, names: Sequence[str], vllm_s: type[Any], this: Any
) -> dict[str, Arm]:
    return {
        "eager": {
            name: partial(getattr(vllm_s, name), state)
            for name in names
            if hasattr(vllm_s, name)
        },
        "replayed": {
            **{name: getattr(this, name) for name in names},
            "_may_skip_staging": this._may_skip_staging,
        },
        "verified": {"prepare_attn": type(state).prepare_attn.__get__(state)},
    }


def _drafting_arms(drafts: Any) -> dict[str, Arm]:
    """The part of the arms that a draft model's own builds are; none without them."""
    if drafts is None:
        return {}
    from graphparity.fastpath.vllm_plugin.draft_builds import (  # noqa: PLC0415
        DraftBuilds,
    )

    # The same recordings and counters, without what mode "verify" puts around them.
    replaying = copy.copy(drafts)
    replaying.__class__ = DraftBuilds
    return {
        "eager": {DRAFT_BUILD: drafts.decodes.build},
        "replayed": {DRAFT_BUILD: replaying.replay_or_build},
        "verified": {DRAFT_BUILD: drafts.replay_or_build},
    }


def _put_on(state: Any, members: Arm) -> None:
    vars(state).update({it: members[it] for it in members if it != DRAFT_BUILD})
    if DRAFT_BUILD in members:
        state.plugged.drafts.decodes.serve_by(members[DRAFT_BUILD])


def _take_off(state: Any, members: Iterable[str]) -> None:
    for name in members:
        if name == DRAFT_BUILD:
            drafts = state.plugged.drafts
            drafts.decodes.serve_by(drafts.replay_or_build)
        else:
            vars(state).pop(name, None)


def _base_of(state: Any) -> type[Any]:
    """The class of vLLM that a plugged-in state specializes."""
    (base,) = (
        cls
        for cls in type(state).__mro__
        if f"{cls.__module__}.{cls.__qualname__}" == state.plugged.name
    )
    return base


@contextmanager
def arm(state: Any, members: Arm) -> Iterator[None]:
    """While active, ``state`` serves its steps by ``members``."""
    _put_on(state, members)
    try:
        yield
    finally:
        _take_off(state, members)


def probing(members: Arm, probes: Mapping[Callable[[], object], list[int]]) -> Arm:
    """An arm whose steps begin with a call whose nanoseconds are noted: what a launch,
    or a mere call, costs between the other work of a step, when nothing of it is
    cached.

    Args:
        members: the arm.
        probes: what is called every step -> its nanoseconds.
    """
    turns, prepare_attn = cycle(probes.items()), members["prepare_attn"]

    def prepare_attn_after_probe(*args: Any, **kwargs: Any) -> Any:
        probe, spans = next(turns)
        begin = time.perf_counter_ns()
        probe()
        spans.append(time.perf_counter_ns() - begin)
        return prepare_attn(*args, **kwargs)

    return {**members, "prepare_attn": prepare_attn_after_probe}


class BlockClock:
    """Alternates two arms in blocks of steps, and times every step.

    The order is eager, replayed, replayed, eager, so that a drift cancels out.

    Args:
        runner: vLLM's ``GPUModelRunner``.
        num_pairs: blocks of each arm.
        block_steps: steps of a block, the settling ones included.
    """

    def __init__(self, runner: Any, num_pairs: int, block_steps: int) -> None:
        self._runner, self._state = runner, runner.model_state
        self._block_steps = block_steps
        order = ["eager", "replayed", "replayed", "eager"]
        self._blocks = (order * num_pairs)[: 2 * num_pairs]
        self.build_ns: dict[str, list[int]] = {"eager": [], "replayed": []}
        self.gpu_wait_ns: dict[str, list[int]] = {"eager": [], "replayed": []}
        """What the host waited for the GPU, each time that it did."""
        self.draft_build_ns: dict[str, list[int]] = {"eager": [], "replayed": []}
        """Every build of a draft model's own FULL steps; none without them."""
        self._starts: list[list[int]] = []
        self._arms = arms_of(self._state)
        self._timed = {name: self._timed_arm(name) for name in self.build_ns}

    def _timed_arm(self, name: str) -> Arm:
        members, full_mode = self._arms[name], self._state._full_mode
        prepare_attn = members["prepare_attn"]
        timed = {"prepare_attn": _timed(prepare_attn, self.build_ns[name], full_mode)}
        if DRAFT_BUILD in members:
            timed[DRAFT_BUILD] = _timed_draft(
                members[DRAFT_BUILD], self.draft_build_ns[name], full_mode
            )
        return {**members, **timed}

    @property
    def is_complete(self) -> bool:
        """Whether every block, and the step after the last, has begun."""
        num_begun = len(self._starts)
        return num_begun > len(self._blocks)

    @contextmanager
    def running(self, warm_up_steps: int) -> Iterator[None]:
        """Count the runner's steps from the one after ``warm_up_steps``; before and
        after, they replay.
        """
        execute_model, self._to_skip = self._runner.execute_model, warm_up_steps

        def execute(*args: Any, **kwargs: Any) -> Any:
            self._tick()
            return execute_model(*args, **kwargs)

        self._runner.execute_model = execute
        synchronize = torch.cuda.Event.synchronize
        try:
            with (
                arm(self._state, self._arms["replayed"]),
                mock.patch.object(
                    torch.cuda.Event, "synchronize", self._noting_wait(synchronize)
                ),
            ):
                yield
        finally:
            del self._runner.execute_model

    def block_steps_us(self) -> dict[str, list[list[float]]]:
        """Arm -> the microseconds of the counted steps of each of its blocks.

        Raises:
            RuntimeError: the runner did too few steps.
        """
        if not self.is_complete:
            raise RuntimeError(
                f"only {len(self._starts)} of {len(self._blocks)} blocks began: let "
                "the requests run longer."
            )
        found: dict[str, list[list[float]]] = {"eager": [], "replayed": []}
        for index, name in enumerate(self._blocks):
            starts = [*self._starts[index], self._starts[index + 1][0]]
            steps = [(after - before) / 1e3 for before, after in pairwise(starts)]
            found[name].append(steps[SETTLING_STEPS:])
        return found

    def _noting_wait(
        self, synchronize: Callable[[torch.cuda.Event], None]
    ) -> Callable[[torch.cuda.Event], None]:
        """``synchronize``, of which every counted block notes how long it took."""

        def synchronize_event(event: torch.cuda.Event) -> None:
            begin = time.perf_counter_ns()
            synchronize(event)
            waited = time.perf_counter_ns() - begin
            if self._starts and not self.is_complete:
                name = self._blocks[len(self._starts) - 1]
                self.gpu_wait_ns[name].append(waited)

        return synchronize_event

    def _tick(self) -> None:
        if self._to_skip:
            self._to_skip -= 1
            return
        if self.is_complete:
            return
        if not self._starts or len(self._starts[-1]) == self._block_steps:
            self._begin_block()
        self._starts[-1].append(time.perf_counter_ns())

    def _begin_block(self) -> None:
        self._starts.append([])
        if not self.is_complete:
            name = self._blocks[len(self._starts) - 1]
            for other in self._timed.values():
                _take_off(self._state, other)
            _put_on(self._state, self._timed[name])


def _timed(call: PrepareAttn, spans: list[int], full_mode: object) -> PrepareAttn:
    """``call``, which notes the nanoseconds of every FULL step's build.

    It passes on what the runner's step passes, by name: packing the arguments would
    cost as much as a replay.
    """

    def prepare_attn(
        input_batch: Any,
        cudagraph_mode: object,
        block_tables: Any,
        slot_mappings: Any,
        attn_groups: Any,
        kv_cache_config: Any,
        for_capture: bool = False,
    ) -> Any:
        begin = time.perf_counter_ns()
        metadata = call(
            input_batch,
            cudagraph_mode,
            block_tables,
            slot_mappings,
            attn_groups,
            kv_cache_config,
            for_capture,
        )
        end = time.perf_counter_ns()
        if cudagraph_mode is full_mode:
            spans.append(end - begin)
        return metadata

    return prepare_attn


def _timed_draft(
    call: Callable[..., Any], spans: list[int], full_mode: object
) -> Callable[..., Any]:
    """``call``, which notes the nanoseconds of every build of a draft's FULL step."""

    def build(
        num_reqs: int,
        batch_desc: Any,
        num_query_per_req: int,
        seq_lens_cpu_upper_bound: torch.Tensor,
        step: int,
    ) -> Any:
        begin = time.perf_counter_ns()
        metadata = call(
            num_reqs=num_reqs,
            batch_desc=batch_desc,
            num_query_per_req=num_query_per_req,
            seq_lens_cpu_upper_bound=seq_lens_cpu_upper_bound,
            step=step,
        )
        end = time.perf_counter_ns()
        if batch_desc.cg_mode is full_mode:
            spans.append(end - begin)
        return metadata

    return build
