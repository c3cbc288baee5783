"""Metadata builds timed by pytest-benchmark: eager against replayed.

``pytest --benchmark-only`` runs them, and nothing else; other sessions leave them out
(``benchmarks/sessions.py``). A table of the report is one attention group; its rows are
a few graph keys, eager and replayed.
"""

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from graphparity.conformance.benchmarks.build_cases import (
    BuildCase,
    build_cases,
    checked_build,
    few_keys,
)
from graphparity.conformance.benchmarks.timing import SYNCHRONIZE_EVERY, wait_for_gpu
from graphparity.conformance.pytest_plugin import subject_names
from graphparity.conformance.subjects.registry import load_subject
from graphparity.conformance.tally import key_id

ROUNDS = 200
"""Calls timed, one by one, after some of warm-up."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every group of every subject asked for, at a few keys."""
    recorder = metafunc.config.getoption("--recorder")
    subjects = [load_subject(name, recorder) for name in subject_names(metafunc.config)]
    cases = [case for it in subjects for case in build_cases(it, few_keys(it))]
    metafunc.parametrize("case", cases, ids=[case.name for case in cases])


@pytest.mark.parametrize("way", ["eager", "replayed"])
def test_metadata_build(benchmark: BenchmarkFixture, case: BuildCase, way: str) -> None:
    """The host time of one ``prepare_attn``, whose result was checked before."""
    benchmark.group = f"{case.subject.name}, {case.group}"
    benchmark.name = f"{key_id(case.key)} {way}"
    # An installed module's path is no name by which runs can be compared.
    benchmark.fullname = f"{benchmark.group}, {benchmark.name}"
    calls = 0

    def let_the_gpu_catch_up() -> None:
        nonlocal calls
        if calls % SYNCHRONIZE_EVERY == 0:
            wait_for_gpu()
        calls += 1

    with checked_build(case) as build:
        benchmark.extra_info["nodes"] = build.num_nodes
        benchmark.pedantic(
            build.eager if way == "eager" else build.replayed,
            setup=let_the_gpu_catch_up,
            rounds=ROUNDS,
            warmup_rounds=SYNCHRONIZE_EVERY,
        )
    wait_for_gpu()
