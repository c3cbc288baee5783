"""Engines of two and of four ranks serve by recordings, each rank by its own.

FULL emulated, as in ``test_vllm_engine``, with which it shares its processes. Ranks are
vLLM's worker processes under tensor parallelism; they hold different weights and speak
over gloo, so every token hangs on what all of them build.
"""

from typing import Any

import pytest

from graphparity.conformance.full_on_cpu.processes import Outcome, engine_outcomes
from graphparity.conformance.full_on_cpu.scenarios import CAPTURE_NUM_REQS, WAVES

RUNS = [(n, f"{n} ranks, {mode}") for n in (2, 4) for mode in ("replay", "verify")]
MIXED = "rank 1 reads the host"


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    """The outcome of every scenario, by name."""
    return engine_outcomes()


@pytest.mark.parametrize(("num_ranks", "name"), [*RUNS, (2, MIXED)])
def test_tokens_are_vllm_s_own(
    num_ranks: int, name: str, outcomes: dict[str, Outcome]
) -> None:
    """As vLLM's engine of as many ranks, without graphs and without the plug-in, also
    where one rank replays what another builds.
    """
    tokens = outcomes[f"{num_ranks} ranks, vllm"]["tokens"]
    assert outcomes[name].get("error") is None
    assert outcomes[name]["tokens"] == tokens
    wanted = [[request.max_tokens for request in wave] for wave in WAVES[1:]]
    assert [[len(it) for it in wave] for wave in tokens] == wanted


def test_tokens_hang_on_the_buffers_of_every_rank(outcomes: dict[str, Outcome]) -> None:
    """Without one copy in the recordings of rank 1 they are others."""
    stale = outcomes["rank 1 is stale, unjudged"]
    assert stale.get("error") is None
    assert all(rank["recorder_replays"] > 0 for rank in stale["ranks"])
    assert stale["tokens"] != outcomes["2 ranks, vllm"]["tokens"]


@pytest.mark.parametrize(("num_ranks", "name"), RUNS)
def test_every_rank_records_the_same_and_replays_as_often(
    num_ranks: int, name: str, outcomes: dict[str, Outcome]
) -> None:
    """All keys of the captured sizes, and all FULL steps but those with a prefill row:
    counted by the graphs, by the recorder and by the plug-in of each.
    """
    ranks = outcomes[name]["ranks"]
    assert [rank["rank"] for rank in ranks] == list(range(num_ranks))
    for rank in ranks:
        report = rank["report"]
        eager = report["steps_eager"]
        assert rank["keys"] == ranks[0]["keys"] == _keys()
        assert report["num_recorded"] == report["num_keys"] == len(_keys())
        assert rank["recorder_replays"] == report["steps_replayed"] > 30
        assert _full_steps(rank) == report["steps_replayed"] + eager["PREFILL"]
        assert eager["MISSING_RECORDING"] == eager["CAPTURE_REFUSED"] == 0
        assert report["steps_replayed"] == ranks[0]["report"]["steps_replayed"]
        assert eager == ranks[0]["report"]["steps_eager"]


@pytest.mark.parametrize(("num_ranks", "name"), [*RUNS, (2, MIXED)])
def test_every_rank_answers_with_its_own_report(
    num_ranks: int, name: str, outcomes: dict[str, Outcome]
) -> None:
    """``collective_rpc("graphparity_report")`` has one answer a rank, of this state."""
    reports = [rank["report"] for rank in outcomes[name]["ranks"]]
    assert len(reports) == num_ranks
    for report in reports:
        assert report["model_state"].endswith("default.DefaultModelState")
        assert report["mode"] == outcomes[name]["scenario"]["mode"]
        assert report["left_alone"] == ""


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_every_rank_verifies_each_of_its_steps(
    num_ranks: int, outcomes: dict[str, Outcome]
) -> None:
    """And finds no difference."""
    for rank in outcomes[f"{num_ranks} ranks, verify"]["ranks"]:
        report = rank["report"]
        assert report["steps_verified"] == report["steps_replayed"] > 30


def test_each_rank_has_a_verdict_of_its_own(outcomes: dict[str, Outcome]) -> None:
    """The builder of rank 1 alone is refused: eager there, replayed on rank 0, in the
    same steps.
    """
    recording, refused = (rank["report"] for rank in outcomes[MIXED]["ranks"])
    assert [recording["num_recorded"], refused["num_recorded"]] == [len(_keys()), 0]
    assert [group["is_recorded"] for group in recording["groups"]] == [True]
    (group,) = refused["groups"]
    assert not group["is_recorded"]
    assert group["reason"].startswith("RECORDABLE_NODES: Tensor.item cannot be recorde")
    assert recording["steps_eager"]["CAPTURE_REFUSED"] == refused["steps_replayed"] == 0
    assert refused["steps_eager"]["CAPTURE_REFUSED"] == recording["steps_replayed"] > 30
    assert refused["steps_eager"]["MISSING_RECORDING"] == 0


def test_a_difference_on_one_rank_stops_serving(outcomes: dict[str, Outcome]) -> None:
    """Rank 1 finds it and tells every path in its log; rank 0 ends with it, by rank, at
    once, so that the engine's own error is that one.
    """
    outcome = outcomes["rank 1 is stale, verified"]
    assert "rank 1 of 2: a replayed metadata build differs" in outcome["error"]
    assert "block_table[" in outcome["error"]
    log = outcome["log"].splitlines()
    for rank in range(2):
        lines = [line for line in log if f"(Worker_TP{rank} " in line]
        assert any("VerifyError:" in line for line in lines)


def _keys() -> list[list[int]]:
    """Of decode steps of one token a request, by the captured size that holds them."""
    return [
        [num_reqs, padded, num_reqs, padded]
        for num_reqs in range(1, max(CAPTURE_NUM_REQS) + 1)
        for padded in [min(it for it in CAPTURE_NUM_REQS if it >= num_reqs)]
    ]


def _full_steps(rank: dict[str, Any]) -> int:
    """How many steps ran a FULL graph."""
    return sum(it["steps"] for it in rank["full_steps"])
