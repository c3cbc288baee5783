"""Each profile says how much a run draws, and the main job hands it on."""

import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

from graphparity.conformance import __main__ as main_job
from graphparity.conformance.main_job import SuiteRun
from graphparity.conformance.run_profiles import CI, DEV, SOAK

pytest_plugins = ["pytester"]


@pytest.fixture(autouse=True)
def hypothesis_profile() -> Iterator[None]:
    """Undo what a session within this process loads."""
    name = settings.get_current_profile_name()
    yield
    settings.load_profile(name)


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ((), CI.max_examples),
        (("--conformance-profile=dev",), DEV.max_examples),
        (("--conformance-profile=dev", "--max-examples=7"), 7),
    ],
)
def test_a_session_draws_as_its_profile_says(
    pytester: pytest.Pytester, options: tuple[str, ...], count: int
) -> None:
    """Unless a count is given; the header says it."""
    pytester.makepyfile(
        f"""
        from hypothesis import settings

        def test_settings():
            assert settings().max_examples == {count}
            assert settings().derandomize
            assert settings().database is None
        """
    )
    plugin = "graphparity.conformance.pytest_plugin"
    ended = pytester.runpytest_inprocess("-p", plugin, *options)
    assert ended.parseoutcomes() == {"passed": 1}
    ended.stdout.fnmatch_lines([f"graphparity: *; {count} batches a key"])


def test_only_a_soak_draws_anew() -> None:
    """And draws the most."""
    assert [it.is_derandomized for it in (DEV, CI, SOAK)] == [True, True, False]
    assert DEV.max_examples < CI.max_examples < SOAK.max_examples
    for of_vllm in (True, False):
        lives = [it.lives_of(is_vllm=of_vllm, releases=True) for it in (DEV, CI, SOAK)]
        assert lives == sorted(lives)


def test_the_dev_job_runs_plain_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what it draws; it needs no vLLM."""
    commands: list[list[str]] = []

    def note(runs: list[SuiteRun], **_: object) -> None:
        commands.extend(run._module_and_arguments() for run in runs)

    monkeypatch.setattr(main_job, "run_all", note)
    monkeypatch.setattr(sys, "argv", ["conformance", "--profile=dev"])
    assert main_job.main() == 1, "nothing was run"
    (command,) = commands
    assert "--subject=torch-decode" in command
    assert command[command.index("--conformance-profile") + 1] == "dev"


def test_a_soak_of_no_time_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence, with the remedy."""
    monkeypatch.setattr(sys, "argv", ["c", "--profile=soak", "--minutes=0"])
    with pytest.raises(SystemExit):
        main_job.main()
    assert "--minutes 0 soaks nothing: give more than 0." in capsys.readouterr().err
