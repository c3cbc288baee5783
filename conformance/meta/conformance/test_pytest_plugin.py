"""The plug-in in sessions of its own: what passes, what fails, what it prints."""

import json
import sys
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest

from graphparity.conformance import pytest_plugin
from graphparity.conformance.meta.conformance import faulty_subjects as faults

pytest_plugins = ["pytester"]

PLUGIN = "graphparity.conformance.pytest_plugin"
REPLAY_CHECKS = "graphparity.conformance.test_replay_equals_eager"
REFERENCE_CHECKS = "graphparity.conformance.test_eager_equals_reference"

BAD_OPTIONS = {
    "--recorder=tape": "unknown recorder 'tape': use one of *emulated*.",
    "--max-examples=0": "--max-examples 0 checks nothing: give 1 or more.",
    "--subject=no-such-family:1": (
        "unknown subject 'no-such-family' (*): use one of *, or the address "
        "module:callable of your own."
    ),
    "--subject=torch-decode:0": (
        "subject 'torch-decode:0' does not end in a query length: write "
        "FAMILY:QUERY_LEN, for example torch-decode:1."
    ),
}


def run(pytester: pytest.Pytester, *args: str) -> pytest.RunResult:
    """A session of its own with the plug-in; two random batches a key."""
    command = [sys.executable, "-m", "pytest", "-p", PLUGIN, "-p", "no:cacheprovider"]
    return pytester.run(*command, "--max-examples=2", *args)


def run_here(pytester: pytest.Pytester, *args: str) -> pytest.RunResult:
    """A session within this process, which has torch loaded already."""
    return pytester.runpytest_inprocess("-p", PLUGIN, "--max-examples=2", *args)


@pytest.fixture
def hypothesis_profile() -> Iterator[None]:
    """Undo the profile that the plug-in loads in a session within this process."""
    name = hypothesis.settings.get_current_profile_name()
    yield
    hypothesis.settings.load_profile(name)


def test_sound_subject_passes_with_a_table_and_progress(
    pytester: pytest.Pytester,
) -> None:
    """Exit code 0; one row a subject; the progress file is whole JSON."""
    result = run(
        pytester,
        "--pyargs",
        REPLAY_CHECKS,
        "--subject=torch-decode:1",
        "--progress-file=progress.json",
    )
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(
        [
            "graphparity: subjects torch-decode:1; recorder emulated; 2 batches a key",
            "*Replayed metadata equals the eager build's*",
            "*torch-decode:1*emulated*8*",
        ]
    )
    progress = json.loads((pytester.path / "progress.json").read_text())
    assert progress["tests"] == progress["done"] > 8
    assert progress["failed"] == 0
    (row,) = progress["results"]
    assert (row["subject"], row["keys"]) == ("torch-decode:1", 8)
    assert row["tally"]["steps_replayed"] > 8
    assert not (pytester.path / "progress.part").exists()
    assert progress["exit_status"] == 0
    assert progress["asked"] == ["torch-decode:1"]
    assert progress["tests_of"]["torch-decode:1"]["done"] == progress["done"]
    assert progress["environment"]["GPU"] == "none: emulated recorder"
    assert row["groups"] == ["compressor", "sliding_window"]
    assert len(row["key_ids"]) == 8
    assert_cells_add_up(row)
    frozen = row["tally"]["frozen"]["sliding_window"]
    assert frozen["num_decodes"]["3x4x3x4"] == "4"
    assert frozen["seq_lens"]["3x4x3x4"] == "int32[4]"


def assert_cells_add_up(row: dict[str, Any]) -> None:
    """Every field is counted in one cell; a replay builds each group once."""
    tally = row["tally"]
    cells = [
        (group, cell) for row in tally["cells"].values() for group, cell in row.items()
    ]
    assert sum(it["fields_compared"] for _, it in cells) == tally["fields_compared"]
    for group in row["groups"]:
        replayed = [it["steps_replayed"] for name, it in cells if name == group]
        assert sum(replayed) == tally["steps_replayed"]


def test_subject_that_never_replays_fails(pytester: pytest.Pytester) -> None:
    """A check of decode steps fails, and tells how to repeat it."""
    result = run(
        pytester,
        "--pyargs",
        REPLAY_CHECKS,
        "-k=3x4x3x4",
        f"--subject={faults.name_of(faults.never_replays, 1)}",
        "--progress-file=progress.json",
    )
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert result.parseoutcomes()["failed"] == 1
    result.stdout.fnmatch_lines(
        ["*replays of a recording: 0, but should be 1", "*check_step(load_subject(*"]
    )
    progress = json.loads((pytester.path / "progress.json").read_text())
    assert (progress["tests"], progress["done"], progress["failed"]) == (1, 1, 1)
    assert progress["exit_status"] == pytest.ExitCode.TESTS_FAILED
    (failure,) = progress["failures"]
    assert failure["key"] == "3x4x3x4"
    assert failure["test"].startswith("test_replay_equals_eager.py::")
    assert failure["step"].startswith("DecodeBatch(key=GraphKey(num_reqs=3")
    assert f"check_step(load_subject('{failure['subject']}')" in failure["repeat"]
    assert {
        "path": "replays of a recording",
        "group": "shared",
        "actual": "0",
        "expected": "1",
    } in failure["found"]


@pytest.mark.usefixtures("hypothesis_profile")
def test_session_that_replayed_nothing_fails_though_its_tests_pass(
    pytester: pytest.Pytester,
) -> None:
    """With the checks bypassed, the tally alone gives the session away."""
    pytester.makepyfile(
        """
        def test_bypassed(subject, tally):
            tally.decode_steps += 1
        """
    )
    result = run_here(pytester, "--subject=torch-decode:1")
    assert result.parseoutcomes() == {"passed": 1}
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["ERROR: torch-decode:1 replayed no step: *"])


@pytest.mark.usefixtures("hypothesis_profile")
def test_session_of_reference_checks_alone_passes(pytester: pytest.Pytester) -> None:
    """They build eagerly by design, so that no step was replayed is no failure."""
    result = run_here(
        pytester, "--pyargs", REFERENCE_CHECKS, "--subject=torch-decode:1"
    )
    assert result.parseoutcomes()["passed"] == 2
    assert result.ret == pytest.ExitCode.OK


@pytest.mark.usefixtures("hypothesis_profile")
def test_other_tests_are_left_alone(pytester: pytest.Pytester) -> None:
    """Without a subject there is no table, no tally and no failure."""
    pytester.makepyfile("def test_other(): pass")
    result = run_here(pytester)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.no_fnmatch_line("*Replayed metadata equals*")


@pytest.mark.usefixtures("hypothesis_profile")
@pytest.mark.parametrize(("option", "message"), BAD_OPTIONS.items(), ids=BAD_OPTIONS)
def test_bad_option_is_a_usage_error_of_one_sentence(
    pytester: pytest.Pytester, option: str, message: str
) -> None:
    """Exit code 4 and one line; no traceback, no test run."""
    result = run_here(pytester, "--pyargs", REPLAY_CHECKS, option)
    result.stderr.fnmatch_lines([f"ERROR: {message}"])
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stdout.no_fnmatch_line("*Traceback*")


def test_a_module_of_engines_is_skipped_as_a_whole(pytester: pytest.Pytester) -> None:
    """Once, with the reason, and not test by test."""
    modules = [f"graphparity.conformance.test_vllm_engine{it}" for it in ("", "_ranks")]
    result = run(pytester, "-rs", "--subject=torch-decode:1", "--pyargs", *modules)
    result.assert_outcomes(skipped=2)
    result.stdout.fnmatch_lines(["SKIPPED*engines are run once, apart from the suite*"])


def test_an_address_alone_lets_the_folder_of_the_call_be_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once, and not for the families that the suite has."""
    monkeypatch.setattr(sys, "path", [])
    pytest_plugin._find_addresses(["torch-decode:2"], "here")
    assert sys.path == []
    for _ in range(2):
        pytest_plugin._find_addresses(["torch-decode:2", "my_module:made:1"], "here")
    assert sys.path == ["here"]
