"""The real engine serves by recordings, on a CPU, FULL graphs emulated.

Engines run in a few processes of their own, started once a session; what FULL
emulated means, and what it cannot show, is told in ``full_on_cpu``. Run it without the
suite's plug-in: ``python -m pytest --pyargs graphparity.conformance.test_vllm_engine``.
"""

import re

import pytest

from graphparity.conformance.full_on_cpu.processes import Outcome, engine_outcomes
from graphparity.conformance.full_on_cpu.scenarios import REPORT_PREFIX, WAVES


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    """The outcome of every scenario, by name."""
    return engine_outcomes()


@pytest.mark.parametrize(
    "name",
    [
        "off",
        "replay",
        "verify",
        "ineligible",
        "stale, judged",
        "host read",
        "cold kernel",
    ],
)
def test_tokens_are_vllm_s_own(name: str, outcomes: dict[str, Outcome]) -> None:
    """Whatever the plug-in does, or leaves alone: as vLLM's engine without graphs and
    without the plug-in, for requests of equal lengths and for joining and leaving ones.
    """
    tokens = outcomes["vllm"]["tokens"]
    assert outcomes[name].get("error") is None
    assert outcomes[name]["tokens"] == tokens
    wanted = [[request.max_tokens for request in wave] for wave in WAVES]
    assert [[len(it) for it in wave] for wave in tokens] == wanted


def test_tokens_hang_on_the_replayed_buffers(outcomes: dict[str, Outcome]) -> None:
    """Without one recorded copy they are others, so equal tokens say something."""
    stale = outcomes["stale, unjudged"]
    assert stale["recorder_replays"] > 0
    assert stale["tokens"] != outcomes["vllm"]["tokens"]


def test_decode_steps_are_served_by_recordings(outcomes: dict[str, Outcome]) -> None:
    """Counted by the recorder and by the plug-in; no step lacked a recording."""
    outcome = outcomes["replay"]
    report = outcome["report"]
    assert outcome["run"] == REPORT_PREFIX
    assert outcome["recorder_replays"] == report["steps_replayed"] > 90
    assert report["num_recorded"] == report["num_keys"] == 4
    assert report["steps_eager"]["MISSING_RECORDING"] == 0
    assert report["steps_eager"]["NOT_FULL"] > 0


def test_a_prefill_row_that_runs_as_a_decode_is_left_eager(
    outcomes: dict[str, Outcome],
) -> None:
    """The last token of a chunked prompt, next to a decode, in a FULL step."""
    assert outcomes["replay"]["report"]["steps_eager"]["PREFILL"] == 1


def test_profiling_s_recordings_are_released(outcomes: dict[str, Outcome]) -> None:
    """Before the real KV cache is allocated; then everything is recorded again."""
    for name in ("replay", "verify"):
        assert outcomes[name]["captures"] == [
            {"is_profile": True, "recordings_after": 0},
            {"is_profile": False, "recordings_after": 4},
        ]


def test_verify_finds_no_difference(outcomes: dict[str, Outcome]) -> None:
    """Every replayed step was compared."""
    report = outcomes["verify"]["report"]
    assert report["steps_verified"] == report["steps_replayed"] > 90


def test_verify_stops_serving_at_a_stale_buffer(outcomes: dict[str, Outcome]) -> None:
    """At its first replayed step, naming the buffer and the metadata field."""
    outcome = outcomes["stale, verified"]
    assert outcome["recorder_replays"] == 1
    assert outcome["error"].startswith("VerifyError: a replayed metadata build differs")
    for path in ("builders.model.layers.0.self_attn.attn", "model.layers.0"):
        assert f"  {path}" in outcome["error"]
    # Which elements differ hangs on chance: the poison of one may be its right value.
    assert re.search(r"block_table\[\(\d+, \d+\)", outcome["error"])
    assert "GraphKey(num_reqs=3, num_reqs_after_padding=4" in outcome["error"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("stale, judged", "REPLAY_EQUALS_EAGER"),
        ("host read", "RECORDABLE_NODES: Tensor.item cannot be recorded"),
        ("cold kernel", "RECORDABLE_NODES: triton:_copy_kernel cannot be recorded"),
    ],
)
def test_a_builder_that_the_prover_refuses_is_left_eager(
    name: str, reason: str, outcomes: dict[str, Outcome]
) -> None:
    """No step is replayed, none is missing a recording, and the reason is told."""
    outcome = outcomes[name]
    report = outcome["report"]
    assert outcome["recorder_replays"] == report["num_recorded"] == 0
    assert report["steps_eager"]["CAPTURE_REFUSED"] > 90
    assert report["steps_eager"]["MISSING_RECORDING"] == 0
    (group,) = report["groups"]
    assert not group["is_recorded"]
    assert group["reason"].startswith(reason)


def test_an_ineligible_engine_serves_as_without_the_plug_in(
    outcomes: dict[str, Outcome],
) -> None:
    """The state is vLLM's own, and the unmet need is named."""
    report = outcomes["ineligible"]["report"]
    assert report["model_state"].endswith("default.DefaultModelState")
    assert (
        "cudagraph_mode FULL_DECODE_ONLY or FULL_AND_PIECEWISE"
        in (report["left_alone"])
    )
    assert report["num_recorded"] == report["steps_replayed"] == 0


def test_mode_off_leaves_vllm_s_own_state(outcomes: dict[str, Outcome]) -> None:
    """Installed, and told to do nothing."""
    outcome = outcomes["off"]
    assert outcome["report"]["left_alone"] == "the mode is off"
    assert [it["recordings_after"] for it in outcome["captures"]] == [None, None]


def test_a_misspelt_mode_is_an_error_before_weights_load(
    outcomes: dict[str, Outcome],
) -> None:
    """It names key, value and what to write instead."""
    outcome = outcomes["misspelt"]
    assert outcome["error"] == (
        "ValueError: additional_config['graphparity'] has mode = 'fast': use off, "
        "replay, verify."
    )
    assert outcome["models_loaded"] == 0


def test_the_operator_sees_a_table_and_counters(outcomes: dict[str, Outcome]) -> None:
    """In vLLM's log: what was recorded, what was left alone and why, steps so far."""
    log = outcomes["verify"]["log"]
    assert "keys         4 of 4 recorded" in log
    assert "graphparity leaves vllm.v1.worker.gpu.model_states.default" in log
    assert "steps replayed" in log
