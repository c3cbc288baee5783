"""The benchmarks measure what they say, and find at fault what is at fault."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from graphparity.conformance.benchmarks import engine_arms, forked_builds
from graphparity.conformance.benchmarks.engine_arms import SETTLING_STEPS, BlockClock
from graphparity.conformance.benchmarks.served_model import Sample
from graphparity.conformance.benchmarks.server_soak import Round, faults
from graphparity.conformance.benchmarks.timing import summary_of
from graphparity.conformance.subjects.torch_decode import torch_decode
from graphparity.fastpath.recorders import EmulatedRecorder, ReplayTimes
from graphparity.fastpath.seams import Seam
from graphparity.fastpath.vllm_plugin.draft_builds import DraftBuilds
from graphparity.fastpath.vllm_plugin.verify import VerifyingModelState

FULL, NONE = object(), object()
REPORT: dict[str, Any] = {
    "steps_replayed": 120,
    "steps_verified": 120,
    "steps_eager": {"NOT_FULL": 7, "MISSING_RECORDING": 0},
    "left_alone": "",
}
START = {**REPORT, "steps_replayed": 0, "steps_verified": 0}
BEFORE, AFTER = Sample(START, 1 << 30, 1 << 20), Sample(REPORT, 1 << 30, 1 << 20)
SOUND = Round("inf", 10, 0, 100.0, BEFORE, AFTER)


def _ending(**after: Any) -> Round:
    return replace(SOUND, after=replace(AFTER, **after))


AT_FAULT = {
    "a failed request": (
        replace(SOUND, failed=2),
        "2 requests failed, but should be none.",
    ),
    "a step that was not verified": (
        _ending(report={**REPORT, "steps_verified": 119}),
        "119 steps were verified, but should be all 120 replayed.",
    ),
    "no step replayed": (
        _ending(report={**START, "left_alone": "the mode is off"}),
        "No step was replayed: the mode is off.",
    ),
    "a missing recording": (
        _ending(report={**REPORT, "steps_eager": {"MISSING_RECORDING": 1}}),
        "1 steps were eager as MISSING_RECORDING, but should be none.",
    ),
    "a refused recording": (
        _ending(report={**REPORT, "steps_eager": {"CAPTURE_REFUSED": 3}}),
        "3 steps were eager as CAPTURE_REFUSED, but should be none.",
    ),
    "a round without an answer": (
        replace(SOUND, completed=0),
        "A round completed no request.",
    ),
    "GPU memory": (
        _ending(gpu_bytes=(1 << 30) + (2 << 20)),
        "GPU memory grew by 2.0 MiB, but should by 1 at most.",
    ),
    "host memory": (
        _ending(host_bytes=int(1.06 * (1 << 20))),
        "Host memory grew by 6.0%, but should by 5 % at most.",
    ),
}


def test_a_sound_run_of_the_server_is_not_at_fault() -> None:
    """Growth up to the limits is none."""
    grown = _ending(gpu_bytes=(1 << 30) + (1 << 20), host_bytes=int(1.04 * (1 << 20)))
    assert list(faults([SOUND, SOUND], "verify")) == []
    assert list(faults([SOUND, grown], "verify")) == []


@pytest.mark.parametrize("case", AT_FAULT)
def test_a_run_at_fault_says_so_in_a_sentence(case: str) -> None:
    """By its last round."""
    last, sentence = AT_FAULT[case]
    assert sentence in list(faults([SOUND, last], "verify"))


def test_a_summary_is_of_all_calls() -> None:
    """Median and 99th percentile, in microseconds."""
    summary = summary_of([1000 * it for it in range(200, 0, -1)])
    assert (summary.median, summary.p99) == (100.5, 199.0)


def test_a_clock_alternates_the_arms_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager, replayed, replayed, eager; every FULL build of a block is noted, and every
    wait for the GPU; others are not, and warm-up steps and those after the last block
    replay unnoted.
    """
    served: list[str] = []

    def prepare(name: str) -> Any:
        return lambda *args: served.append(name)

    arms = {
        name: {"prepare_attn": prepare(name)}
        for name in ("eager", "replayed", "verified")
    }
    monkeypatch.setattr(engine_arms, "arms_of", lambda state: arms)
    monkeypatch.setattr(torch.cuda.Event, "synchronize", lambda event: None)
    state = SimpleNamespace(_full_mode=FULL)
    runner = SimpleNamespace(model_state=state)

    def step(mode: object) -> None:
        vars(state)["prepare_attn"](None, mode, (), None, [], None)
        event: Any = None
        torch.cuda.Event.synchronize(event)

    runner.execute_model = step
    steps = SETTLING_STEPS + 2
    clock = BlockClock(runner, num_pairs=2, block_steps=steps)
    with clock.running(warm_up_steps=3):
        for _ in range(3 + 4 * steps):
            runner.execute_model(FULL)
        assert not clock.is_complete
        runner.execute_model(NONE)
    blocks = ["eager", "replayed", "replayed", "eager"]
    expected = [name for name in blocks for _ in range(steps)]
    assert served == ["replayed"] * 3 + expected + ["eager"]
    for noted in (clock.build_ns, clock.gpu_wait_ns):
        assert {name: len(it) for name, it in noted.items()} == {
            "eager": 2 * steps,
            "replayed": 2 * steps,
        }
    counted = clock.block_steps_us()
    assert [len(block) for block in counted["eager"]] == [2, 2]
    assert "prepare_attn" not in vars(state)


def test_an_arm_is_all_members_of_a_step() -> None:
    """Vllm's own functions, or those of mode ``replay``; nothing of an arm stays."""
    state = _verifying_state()
    arms = engine_arms.arms_of(state)
    served: dict[str, Any] = {}
    for name, members in arms.items():
        with engine_arms.arm(state, members):
            served[name] = state.prepare_attn()
    assert served == {"eager": "own", "replayed": "replay", "verified": "verify"}
    assert state.prepare_attn() == "verify"
    assert set(vars(state)) == {"plugged", "_specialization"}


def test_an_arm_s_draft_builds_go_with_it() -> None:
    """Vllm's own, replayed alone, or compared; the speculator is left comparing."""

    class Drafts(DraftBuilds):
        def __init__(self) -> None:
            self.decodes: Any = SimpleNamespace(
                build=lambda: "own", serve_by=served.append
            )

        def replay_or_build(self, *step: Any, **rest: Any) -> Any:
            return "verify"

    served: list[Any] = []
    drafts = Drafts()
    state = _verifying_state(drafts)
    arms = engine_arms.arms_of(state)
    built: dict[str, Any] = {}
    for name, members in arms.items():
        with engine_arms.arm(state, members):
            built[name] = served[-1]
    assert built["eager"]() == "own"
    assert built["verified"]() == "verify"
    assert built["replayed"].__func__ is DraftBuilds.replay_or_build
    assert vars(built["replayed"].__self__) == vars(drafts)
    assert len(served) == 6
    assert served[-1]() == "verify"


def _verifying_state(drafts: Any = None) -> Any:
    """A plugged-in state that stages, and builds in a method of its own."""

    class Own:
        def prepare_attn(self) -> Any:
            this: Any = self
            return this.build()

        def build(self) -> str:
            return "own"

    class Replaying(Own):
        _may_skip_staging = True

        def build(self) -> str:
            return "replay"

    class Verifying(VerifyingModelState, Replaying):
        def __init__(self) -> None:
            name = f"{Own.__module__}.{Own.__qualname__}"
            self.plugged = SimpleNamespace(name=name, drafts=drafts)
            self._specialization = SimpleNamespace(seam=Seam("build"))

        def build(self) -> str:
            return "verify"

    return Verifying()


def test_a_clock_that_ran_too_short_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It names how far it got."""
    arms = {name: {"prepare_attn": print} for name in ("eager", "replayed")}
    monkeypatch.setattr(engine_arms, "arms_of", lambda state: arms)
    runner = SimpleNamespace(model_state=SimpleNamespace(_full_mode=FULL))
    clock = BlockClock(runner, num_pairs=1, block_steps=9)
    with pytest.raises(RuntimeError, match="only 0 of 2 blocks began"):
        clock.block_steps_us()


def test_every_form_of_a_build_is_checked_and_timed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Serial, and in the two branches that there can be here."""
    told = ReplayTimes(5.0, 13.0)
    monkeypatch.setattr(EmulatedRecorder, "replay_times", lambda self, graph: told)
    subject = torch_decode("torch-decode:2", 2, "emulated")
    decision, times = forked_builds.measure(subject)
    assert decision.reason == "measured not to pay"
    assert [it.branches for it in decision.tried] == [((0,), (1,))]
    keys = {it.key for it in times}
    assert len(keys) == 3
    assert [len(it.branches) for it in times] == [1] * 3 + [2] * 3
    assert {(it.launch_us, it.gpu_us) for it in times} == {told}
    forked_builds.print_times(times)
    assert "torch-decode:2" in capsys.readouterr().out
