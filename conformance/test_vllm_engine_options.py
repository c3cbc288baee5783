"""Engines with n-gram speculation, with LoRA adapters, or with a key-value connector
serve by recordings as well.

FULL emulated, as in ``test_vllm_engine``, with which it shares its processes.
"""

from typing import Any

import pytest

from graphparity.conformance.full_on_cpu.processes import Outcome, engine_outcomes
from graphparity.conformance.full_on_cpu.scenarios import WAVES

OPTIONS = ["n-gram", "LoRA"]
NUM_DRAFTS = 3
MAX_MODEL_LEN = 128


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    """The outcome of every scenario, by name."""
    return engine_outcomes()


@pytest.mark.parametrize("mode", ["replay", "verify"])
@pytest.mark.parametrize("option", OPTIONS)
def test_tokens_are_vllm_s_own(
    option: str, mode: str, outcomes: dict[str, Outcome]
) -> None:
    """As vLLM's engine of the same option, without graphs and without the plug-in."""
    outcome = outcomes[f"{option}, {mode}"]
    assert outcome.get("error") is None
    assert outcome["tokens"] == outcomes[f"{option}, vllm"]["tokens"]


def test_tokens_of_drafts_hang_on_the_replayed_buffers(
    outcomes: dict[str, Outcome],
) -> None:
    """Without one recorded copy they are others, so equal tokens say something."""
    stale = outcomes["n-gram, stale"]
    assert stale.get("error") is None
    assert stale["recorder_replays"] > 0
    assert stale["tokens"] != outcomes["n-gram, vllm"]["tokens"]


@pytest.mark.parametrize("mode", ["replay", "verify"])
@pytest.mark.parametrize("option", OPTIONS)
def test_every_full_step_has_its_recording(
    option: str, mode: str, outcomes: dict[str, Outcome]
) -> None:
    """All steps that ran a FULL graph were replayed, but for those with a prefill row:
    counted by the graphs, by the recorder and by the plug-in.
    """
    outcome = outcomes[f"{option}, {mode}"]
    report = outcome["report"]
    eager = report["steps_eager"]
    assert eager["MISSING_RECORDING"] == eager["CAPTURE_REFUSED"] == 0
    assert report["num_recorded"] == report["num_keys"] == 4
    assert outcome["recorder_replays"] == report["steps_replayed"] > 50
    assert _full_steps(outcome) == report["steps_replayed"] + eager["PREFILL"]


@pytest.mark.parametrize("option", OPTIONS)
def test_verify_finds_no_difference(option: str, outcomes: dict[str, Outcome]) -> None:
    """Every replayed step was compared."""
    report = outcomes[f"{option}, verify"]["report"]
    assert report["steps_verified"] == report["steps_replayed"] > 50


@pytest.mark.parametrize("mode", ["replay", "verify"])
def test_steps_with_drafts_are_replayed(
    mode: str, outcomes: dict[str, Outcome]
) -> None:
    """Keys and FULL steps have the query length of a token with its drafts, padded
    requests among them.
    """
    outcome = outcomes[f"n-gram, {mode}"]
    query_len = 1 + NUM_DRAFTS
    assert outcome["scenario"]["num_drafts"] == NUM_DRAFTS
    assert outcome["keys"] == [
        [num_reqs, padded, num_reqs * query_len, padded * query_len]
        for num_reqs, padded in [(1, 1), (2, 2), (3, 4), (4, 4)]
    ]
    assert [it["query_len"] for it in outcome["full_steps"]] == [query_len]
    assert outcome["report"]["steps_eager"]["PREFILL"] == 0


def test_drafts_are_accepted_and_rejected(outcomes: dict[str, Outcome]) -> None:
    """Steps are fewer than without speculation, and more than if all were accepted."""
    speculating = outcomes["n-gram, replay"]["report"]["steps_replayed"]
    without = outcomes["replay"]["report"]["steps_replayed"]
    fewest = sum(
        max(request.max_tokens for request in wave) // (1 + NUM_DRAFTS)
        for wave in WAVES
    )
    assert fewest < speculating < without


@pytest.mark.parametrize("mode", ["replay", "verify"])
def test_steps_of_every_number_of_adapters_are_replayed(
    mode: str, outcomes: dict[str, Outcome]
) -> None:
    """Each has FULL graphs of its own; the recordings are those without LoRA."""
    outcome = outcomes[f"LoRA, {mode}"]
    assert [it["num_active_loras"] for it in outcome["full_steps"]] == [0, 1, 2]
    assert outcome["keys"] == outcomes["replay"]["keys"]


def test_adapters_change_the_tokens_of_their_requests(
    outcomes: dict[str, Outcome],
) -> None:
    """Of those alone: the first of three requests has none."""
    for with_lora, without in zip(
        outcomes["LoRA, vllm"]["tokens"], outcomes["vllm"]["tokens"], strict=True
    ):
        same = [one == other for one, other in zip(with_lora, without, strict=True)]
        assert same == [i % 3 == 0 for i in range(len(same))]


def test_a_connector_reads_and_keeps_the_step_s_own_metadata(
    outcomes: dict[str, Outcome],
) -> None:
    """At every FULL step the bound that its scheduler's output implies; what it kept of
    the step before is left alone. Tokens are those without a connector.
    """
    outcome = outcomes["connector, replay"]
    assert outcome["tokens"] == outcomes["vllm"]["tokens"][1:2]
    report, read = outcome["report"], outcome["connector_reads"]
    assert report["num_made_anew"] == report["num_recorded"] == 4
    assert len(read) == _full_steps(outcome) == report["steps_replayed"] > 10
    for max_seq_len, scheduled, was_left_alone in read:
        assert max_seq_len == scheduled
        assert was_left_alone


def test_a_connector_that_is_handed_the_recording_s_metadata_reads_otherwise(
    outcomes: dict[str, Outcome],
) -> None:
    """Planted: it reads the bound of the capture, whatever is scheduled."""
    read = outcomes["connector, frozen"]["connector_reads"]
    assert {max_seq_len for max_seq_len, _, _ in read} == {MAX_MODEL_LEN}
    assert MAX_MODEL_LEN not in {scheduled for _, scheduled, _ in read}


def _full_steps(outcome: dict[str, Any]) -> int:
    """How many steps ran a FULL graph."""
    return sum(it["steps"] for it in outcome["full_steps"])
