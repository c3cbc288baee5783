"""``pytest --benchmark-only``: what it runs, what it says, and what fails it."""

import json
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
import torch

from graphparity.conformance.benchmarks import sessions
from graphparity.conformance.benchmarks.build_cases import (
    ALL_GROUPS,
    BuildCase,
    build_cases,
    checked_build,
    few_keys,
)
from graphparity.conformance.meta.conformance import faulty_subjects as faults
from graphparity.conformance.subjects.registry import load_subject

pytest_plugins = ["pytester"]

PLUGIN = "graphparity.conformance.pytest_plugin"
BENCHMARKS = "graphparity.conformance.benchmarks"


@pytest.fixture(autouse=True)
def _hypothesis_profile() -> Iterator[None]:
    """Undo the profile that the plug-in loads in a session within this process."""
    name = hypothesis.settings.get_current_profile_name()
    yield
    hypothesis.settings.load_profile(name)


def run_here(pytester: pytest.Pytester, *args: str) -> pytest.RunResult:
    """A session within this process, which has torch loaded already."""
    options = ("-p", PLUGIN, "-p", "no:cacheprovider", "--pyargs")
    return pytester.runpytest_inprocess(*options, *args)


def test_every_group_and_key_is_timed_both_ways(pytester: pytest.Pytester) -> None:
    """Of the whole suite nothing but benchmarks is run; figures say what they are."""
    result = run_here(
        pytester,
        "graphparity.conformance",
        "--benchmark-only",
        "--benchmark-json=times.json",
        "--subject=torch-decode:1",
    )
    assert result.parseoutcomes() == {"passed": 3 * 3 * 2}
    result.stdout.fnmatch_lines(["benchmarks: host time alone*not a GPU launch*"])
    written = json.loads((pytester.path / "times.json").read_text())
    assert written["machine_info"]["recorder"] == "emulated"
    names = {it["fullname"] for it in written["benchmarks"]}
    assert names == {
        f"torch-decode:1, {group}, {key} {way}"
        for group in (ALL_GROUPS, "compressor", "sliding_window")
        for key in ("1x1x1x1", "3x4x3x4", "8x8x8x8")
        for way in ("eager", "replayed")
    }
    assert all(it["extra_info"]["nodes"] > 0 for it in written["benchmarks"])


def test_other_sessions_leave_benchmarks_out(pytester: pytest.Pytester) -> None:
    """Though their folder is asked for."""
    result = run_here(pytester, BENCHMARKS, "--subject=torch-decode:1")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED


def test_a_build_that_is_not_replayed_is_not_timed(pytester: pytest.Pytester) -> None:
    """It fails as a check does, before a figure is taken."""
    subject = faults.name_of(faults.never_replays, 1)
    result = run_here(
        pytester,
        BENCHMARKS,
        "--benchmark-only",
        f"--subject={subject}",
        "-k=all and 1x1",
    )
    assert result.parseoutcomes()["failed"] == 2
    assert "passed" not in result.parseoutcomes()
    result.stdout.fnmatch_lines(["*replays of a recording: 0, but should be 1*"])


def test_benchmarks_record_real_graphs_where_there_are_any(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only they: the suite stays on the emulated recorder."""
    benchmarking: Any = pytester.parseconfig("-p", PLUGIN, "--benchmark-only")
    checking: Any = pytester.parseconfig("-p", PLUGIN)
    assert sessions.default_recorder(benchmarking) == "emulated"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert sessions.default_recorder(benchmarking) == "cuda"
    assert sessions.default_recorder(checking) == "emulated"


def test_a_group_alone_is_less_work_than_all() -> None:
    """The groups' nodes add up to the whole recording's, but for the map that the
    second group makes itself when it is alone.
    """
    subject = load_subject("torch-decode:2")
    nodes: dict[str, int] = {}
    for case in build_cases(subject, few_keys(subject)[-1:]):
        with checked_build(case) as build:
            nodes[case.group] = build.num_nodes
    own_map = nodes["compressor"] + nodes["sliding_window"] - nodes[ALL_GROUPS]
    assert 0 < own_map < nodes["compressor"] < nodes["sliding_window"]


def test_replays_are_counted_again_after_they_were_timed() -> None:
    """While they are timed, the suite's counting costs nothing."""
    subject = load_subject("torch-decode:1")
    (key, *_) = subject.graph_keys
    with checked_build(BuildCase(subject, ALL_GROUPS, key)) as build:
        before = subject.recorder.num_replays
        replayed, eager = build.replayed(), build.eager()
        assert subject.recorder.num_replays == before
    assert isinstance(replayed, dict)
    assert isinstance(eager, dict)
    assert replayed.keys() == eager.keys()
    with checked_build(BuildCase(subject, ALL_GROUPS, key)):
        assert subject.recorder.num_replays == before + 1


def test_few_keys_are_the_ends_and_one_with_padding() -> None:
    """In ascending order, none twice."""
    keys = few_keys(load_subject("torch-decode:3"))
    assert [tuple(key) for key in keys] == [
        (1, 1, 3, 3),
        (4, 6, 12, 18),
        (8, 8, 24, 24),
    ]
