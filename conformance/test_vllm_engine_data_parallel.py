"""Two data-parallel engines agree on every step's padding, and serve by recordings.

FULL emulated, as in ``test_vllm_engine``, with which they share their processes. The
ranks are given different requests and speak over gloo; ``full_on_cpu/data_parallel.py``
says what stands in for the experts that would need them to agree.
"""

import pytest

from graphparity.conformance.full_on_cpu.processes import Outcome, engine_outcomes
from graphparity.conformance.full_on_cpu.scenarios import CAPTURE_NUM_REQS

RANKS = (0, 1)
RUNS = [(rank, name) for rank in RANKS for name in ("replay", "unjudged")]


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    """The outcome of every scenario, by name."""
    return engine_outcomes()


@pytest.mark.parametrize(("rank", "name"), RUNS)
def test_tokens_are_vllm_s_own(
    rank: int, name: str, outcomes: dict[str, Outcome]
) -> None:
    """As those of one engine without graphs, without the plug-in and without other
    ranks; rank 1 was given the waves in the reverse order.
    """
    outcome = outcomes[f"data-parallel rank {rank}, {name}"]
    assert outcome.get("error") is None
    one_engine_s = outcomes["vllm"]["tokens"][1:]
    expected = one_engine_s if rank == 0 else one_engine_s[::-1]
    assert outcome["tokens"] == expected


@pytest.mark.parametrize("rank", RANKS)
def test_a_rung_s_recording_serves_every_number_of_requests(
    rank: int, outcomes: dict[str, Outcome]
) -> None:
    """From one request up to the rung; no FULL step with requests is left eager."""
    outcome = outcomes[f"data-parallel rank {rank}, replay"]
    report = outcome["report"]
    assert outcome["keys"] == sorted(
        [num_reqs, rung, num_reqs, rung]
        for rung in CAPTURE_NUM_REQS
        for num_reqs in range(1, rung + 1)
    )
    assert report["num_graphs"] == len(CAPTURE_NUM_REQS)
    assert outcome["recorder_replays"] == report["steps_replayed"] > 30
    eager = {reason for reason, steps in report["steps_eager"].items() if steps}
    assert eager == {"NOT_FULL", "DUMMY"}


@pytest.mark.parametrize("rank", RANKS)
def test_without_evidence_steps_padded_for_the_other_rank_are_left_eager(
    rank: int, outcomes: dict[str, Outcome]
) -> None:
    """An unjudged builder was not seen to build alike in a rung: those steps have a
    count of their own. They are many, and with evidence all of them are replayed.
    """
    served = outcomes[f"data-parallel rank {rank}, replay"]["report"]
    report = outcomes[f"data-parallel rank {rank}, unjudged"]["report"]
    padded_for_the_other = report["steps_eager"]["LARGER_RANK"]
    assert padded_for_the_other > 10
    assert report["steps_eager"]["MISSING_RECORDING"] == 0
    assert report["num_left_eager"] == report["num_keys"] - report["num_recorded"] == 3
    assert report["steps_replayed"] + padded_for_the_other == served["steps_replayed"]
