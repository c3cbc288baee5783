"""Engines with EAGLE, EAGLE-3 or MTP serve by recordings; drafts read true metadata.

FULL emulated, as in ``test_vllm_engine``, with which it shares its processes. Tokens do
not depend on drafts, so every draft of every step is compared as well.
"""

from typing import Any

import pytest

from graphparity.conformance.full_on_cpu.processes import Outcome, engine_outcomes
from graphparity.conformance.full_on_cpu.scenarios import WAVES

METHODS = ["EAGLE", "MTP"]
SERVED = [
    "EAGLE, replay",
    "EAGLE, verify",
    "EAGLE, eager prefill",
    "EAGLE-3, replay",
    "EAGLE-3, verify",
    "EAGLE-3, host read",
    "MTP, replay",
    "MTP, eager prefill",
]
REPLAYED = [name for name in SERVED if "host read" not in name]
QUERY_LEN = 3
NUM_DECODES = {"EAGLE": 1, "EAGLE-3": 2, "MTP": 1}
"""The draft's own decode steps for one of the target's."""
MAX_MODEL_LEN = 128


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    """The outcome of every scenario, by name."""
    return engine_outcomes()


@pytest.mark.parametrize("name", SERVED)
def test_tokens_and_drafts_are_vllm_s_own(
    name: str, outcomes: dict[str, Outcome]
) -> None:
    """As vLLM's engine of the same draft model, without graphs and without the plug-in,
    for requests of equal lengths and for joining and leaving ones.
    """
    outcome, vllm_s = outcomes[name], outcomes[f"{name.partition(',')[0]}, vllm"]
    assert outcome.get("error") is None
    for it in ("tokens", "drafts"):
        assert outcome[it] == vllm_s[it][-len(outcome[it]) :]
    assert len(outcome["drafts"][-1]) > 10


def test_eagle_drafts_for_long_requests(outcomes: dict[str, Outcome]) -> None:
    """Their tokens are those without speculation; drafts are accepted and rejected, so
    drafts are made less often than tokens, and more often than if all were accepted.
    """
    outcome = outcomes["EAGLE, replay"]
    assert outcome["tokens"] == outcomes["vllm"]["tokens"][:2]
    num_tokens = sum(request.max_tokens for request in WAVES[0])
    num_drafted = sum(map(len, outcome["drafts"][0]))
    assert num_tokens / QUERY_LEN < num_drafted < num_tokens


@pytest.mark.parametrize("name", REPLAYED)
def test_every_full_step_is_replayed(name: str, outcomes: dict[str, Outcome]) -> None:
    """The target's; of the draft's graphs, prefills have the same query length, unless
    they are eager, and decodes have one token.
    """
    outcome = outcomes[name]
    report, steps = outcome["report"], _full_steps(outcome)
    draft, num_decodes = report["draft"], NUM_DECODES[name.partition(",")[0]]
    assert report["num_recorded"] == report["num_keys"] == 4
    assert report["steps_eager"]["MISSING_RECORDING"] == 0
    assert report["steps_eager"]["CAPTURE_REFUSED"] == 0
    assert report["steps_replayed"] > 10
    assert (
        outcome["recorder_replays"]
        == report["steps_replayed"] + draft["builds_replayed"]
    )
    target_and_draft = 1 if "eager" in name else 2
    query_len = max(steps)
    assert query_len == (4 if "EAGLE-3" in name else QUERY_LEN)
    assert steps[query_len] == target_and_draft * report["steps_replayed"]
    assert steps[1] == draft["builds_replayed"] > 0
    num_drafted = sum(map(_num_drafted, outcome["drafts"]))
    assert steps[1] + draft["builds_eager"]["NOT_FULL"] == num_decodes * num_drafted


@pytest.mark.parametrize("name", REPLAYED)
def test_a_draft_s_own_builds_are_recorded(
    name: str, outcomes: dict[str, Outcome]
) -> None:
    """All keys that its dispatch serves by FULL graphs: of up to three requests where
    the captured sizes are multiples of three, of all where they are of four.
    """
    draft = outcomes[name]["report"]["draft"]
    expected = 4 if "EAGLE-3" in name else 3
    assert draft["num_recorded"] == draft["num_keys"] == expected
    assert [group["is_recorded"] for group in draft["groups"]] == [True]
    assert draft["builds_eager"]["MISSING_RECORDING"] == 0
    assert draft["builds_eager"]["CAPTURE_REFUSED"] == 0


@pytest.mark.parametrize("name", ["EAGLE, verify", "EAGLE-3, verify"])
def test_verify_compares_a_draft_s_own_builds(
    name: str, outcomes: dict[str, Outcome]
) -> None:
    """Every replayed one."""
    draft = outcomes[name]["report"]["draft"]
    assert draft["builds_verified"] == draft["builds_replayed"] > 5


def test_a_draft_that_cannot_be_recorded_is_eager_and_counted(
    outcomes: dict[str, Outcome],
) -> None:
    """Its builder reads the device on the host: the table says so."""
    outcome = outcomes["EAGLE-3, host read"]
    draft = outcome["report"]["draft"]
    assert draft["num_recorded"] == draft["builds_replayed"] == 0
    assert draft["num_keys"] == 4
    (group,) = draft["groups"]
    assert not group["is_recorded"]
    assert "item" in group["reason"]
    steps = _full_steps(outcome)
    assert draft["builds_eager"]["CAPTURE_REFUSED"] == steps[1] > 10


def test_a_draft_s_stale_builds_draft_otherwise(outcomes: dict[str, Outcome]) -> None:
    """Planted: replays leave what the build before left. The tokens hide it."""
    outcome, vllm_s = outcomes["EAGLE-3, stale build"], outcomes["EAGLE-3, vllm"]
    assert outcome.get("error") is None
    assert outcome["report"]["draft"]["builds_replayed"] > 0
    assert outcome["tokens"] == vllm_s["tokens"]
    assert outcome["drafts"] != vllm_s["drafts"]


@pytest.mark.parametrize(
    ("name", "path"),
    [("MTP, stale slots", "slot_mapping["), ("MTP, frozen bound", "max_seq_len: 1,")],
)
def test_verify_stops_serving_at_a_draft_s_first_wrong_build(
    name: str, path: str, outcomes: dict[str, Outcome]
) -> None:
    """Planted: stale slots, and a bound that was recorded too small."""
    error = outcomes[name]["error"]
    assert error.startswith("VerifyError: a replayed metadata build differs")
    assert path in error


@pytest.mark.parametrize("name", ["EAGLE, verify", "MTP, eager prefill"])
def test_verify_finds_no_difference(name: str, outcomes: dict[str, Outcome]) -> None:
    """Every replayed step was compared; host bounds too, where they are read."""
    report = outcomes[name]["report"]
    assert report["steps_verified"] == report["steps_replayed"] > 10


@pytest.mark.parametrize("method", [*METHODS, "EAGLE-3"])
def test_a_draft_s_prefill_after_a_full_step_reads_no_metadata_on_the_host(
    method: str, outcomes: dict[str, Outcome]
) -> None:
    """It is a FULL graph, as its dispatch said: replays hand out what was captured.
    Prefills are eager after the steps that were built eagerly.
    """
    outcome = outcomes[f"{method}, replay"]
    report = outcome["report"]
    assert report["num_made_anew"] == 0
    num_read = sum(map(len, outcome["draft_prefills"]))
    assert num_read == report["steps_eager"]["NOT_FULL"] > 0


@pytest.mark.parametrize("method", METHODS)
def test_an_eager_draft_prefill_reads_what_it_would_have_read(
    method: str, outcomes: dict[str, Outcome]
) -> None:
    """Between replays, the bounds of every step are those of vLLM's eager builds."""
    outcome, vllm_s = outcomes[f"{method}, eager prefill"], outcomes[f"{method}, vllm"]
    assert outcome["report"]["num_made_anew"] == 4
    read = outcome["draft_prefills"]
    assert read == vllm_s["draft_prefills"][-len(read) :]
    assert len({max_seq_len for _, max_seq_len in read[-1]}) > 10
    assert len(read[-1]) == len(outcome["drafts"][-1])


def test_a_draft_prefill_that_reads_frozen_metadata_drafts_otherwise(
    outcomes: dict[str, Outcome],
) -> None:
    """Planted: it reads the recording's bounds, and the schedule that the first of such
    prefills left there. The tokens hide it, for drafts are verified.
    """
    outcome, vllm_s = outcomes["EAGLE, frozen"], outcomes["EAGLE, vllm"]
    assert outcome.get("error") is None
    (tokens,), (drafts,), (read,) = (
        outcome[it] for it in ("tokens", "drafts", "draft_prefills")
    )
    assert [QUERY_LEN, MAX_MODEL_LEN] in read
    assert [QUERY_LEN, MAX_MODEL_LEN] not in vllm_s["draft_prefills"][1]
    assert drafts != vllm_s["drafts"][1]
    assert tokens == vllm_s["tokens"][1]


def test_verify_stops_serving_at_a_frozen_bound(outcomes: dict[str, Outcome]) -> None:
    """At the first replayed step, naming the bound and the step's own."""
    outcome = outcomes["MTP, frozen"]
    assert outcome["report"]["steps_replayed"] == 1
    assert outcome["report"]["steps_verified"] == 0
    assert outcome["error"].startswith("VerifyError: a replayed metadata build differs")
    assert f"attn.max_seq_len: {MAX_MODEL_LEN}, but should be" in outcome["error"]


def _num_drafted(wave: list[list[list[int]]]) -> int:
    """Its steps for which anything is drafted: nothing is where all requests end."""
    return sum(any(-1 not in drafts for drafts in step) for step in wave)


def _full_steps(outcome: dict[str, Any]) -> dict[int, int]:
    """Query length -> how many steps ran a FULL graph of it."""
    return {it["query_len"]: it["steps"] for it in outcome["full_steps"]}
