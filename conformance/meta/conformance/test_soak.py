"""A soak finds what a run of the same batches does not, keeps it, and goes on."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from graphparity.conformance import __main__ as main_job
from graphparity.conformance import profile
from graphparity.conformance.checks import check_step
from graphparity.conformance.decode_batches import DecodeBatch
from graphparity.conformance.main_job import SuiteRun
from graphparity.conformance.meta.conformance import faulty_subjects as faults
from graphparity.conformance.run_profiles import CI
from graphparity.conformance.soak import __main__ as soak
from graphparity.conformance.soak import rounds as rounds_module
from graphparity.conformance.soak import units
from graphparity.conformance.soak.ledger import Ledger, read_ledger
from graphparity.conformance.soak.rounds import Rounds
from graphparity.conformance.soak.units import Unit
from graphparity.conformance.subjects.registry import load_subject
from graphparity.conformance.subjects.subject import Subject
from graphparity.conformance.tally import Tally

RARE = faults.name_of(faults.wrong_at_rare_lengths, 1)
SOUND = "torch-decode:1"
UNIT = "decode steps 1x1x1x1"
MAX_UNITS = 60
"""Of 100 batches each, a few of which are rare."""


@pytest.fixture(autouse=True)
def hypothesis_profile() -> Iterator[None]:
    """Undo what a soak within this process loads."""
    name = settings.get_current_profile_name()
    yield
    settings.load_profile(name)


@pytest.fixture
def decode_steps_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round is one unit a key."""

    def units_of(subject: Subject) -> dict[str, Unit]:
        every = units.units_of(subject)
        return {name: it for name, it in every.items() if name.startswith("decode")}

    monkeypatch.setattr(rounds_module, "units_of", units_of)


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[DecodeBatch]:
    """The decode batches that were checked, in order."""
    batches: list[DecodeBatch] = []

    def noting(subject: Subject, step: DecodeBatch, tally: Tally) -> None:
        batches.append(step)
        check_step(subject, step, tally)

    monkeypatch.setattr(profile, "check_step", noting)
    return batches


def run_until_failure(rounds: Rounds) -> None:
    """Units, until one fails."""
    assert any(not rounds.run_next() for _ in range(MAX_UNITS)), "nothing was found"


def ledger_of(folder: Path, name: str) -> Ledger:
    """What is on disk."""
    ledger = read_ledger(folder, name)
    assert ledger is not None
    return ledger


@pytest.mark.usefixtures("decode_steps_alone")
def test_a_rare_fault_is_found_kept_and_tried_first(
    tmp_path: Path, checked: list[DecodeBatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some lengths that the batches of CI do not have; until that is mended."""
    CI.load()
    subject = load_subject(RARE)
    (key,) = subject.graph_keys
    monkeypatch.setattr(faults, "RARE_LENGTHS", {})
    profile.replays_equal_eager(subject, key, Tally())
    drawn = {batch.seq_lens[0] for batch in checked}
    rare = sorted({*range(2, 64)} - drawn)[-5:]
    monkeypatch.setattr(faults, "RARE_LENGTHS", rare)
    profile.replays_equal_eager(subject, key, Tally())

    run_until_failure(Rounds(RARE, tmp_path))
    found = ledger_of(tmp_path, RARE)
    assert found.failing == [UNIT]
    assert "sliding_window.decode_swa_lens[(0,)]: " in found.message
    assert f"check_step(load_subject('{RARE}'), DecodeBatch(" in found.message
    kept = checked[-1].seq_lens
    assert kept[0] in rare

    checked.clear()
    taken_up = Rounds(RARE, tmp_path)
    assert not taken_up.run_next()
    assert checked[0].seq_lens == kept, "another batch came before the kept one"
    assert len(checked) < 10, "the kept batch was smallest already"

    monkeypatch.setattr(faults, "RARE_LENGTHS", {})
    assert taken_up.run_next()
    assert (ledger_of(tmp_path, RARE).failing, taken_up.ledger.message) == ([], "")


@pytest.mark.usefixtures("decode_steps_alone")
def test_a_soak_that_was_stopped_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Units that passed are not run again in their round, and results add up."""
    first = Rounds(SOUND, tmp_path, max_examples=2)
    assert all(first.run_next() for _ in range(3))

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as stopped:
        stopped.setattr(profile, "replays_equal_eager", stop)
        with pytest.raises(KeyboardInterrupt):
            first.run_next()
    at_stop = ledger_of(tmp_path, SOUND)
    assert (at_stop.rounds, len(at_stop.done)) == (0, 3)

    second = Rounds(SOUND, tmp_path, max_examples=2)
    assert all(second.run_next() for _ in range(8 - 3 + 1))
    after = ledger_of(tmp_path, SOUND)
    assert (after.rounds, after.done) == (1, at_stop.done[:1])
    assert after.result.tally.decode_steps == 9 * 2
    assert after.result.tally.steps_replayed == 9 * 2
    assert after.result.seconds > at_stop.result.seconds > 0


@pytest.mark.usefixtures("decode_steps_alone")
def test_what_was_checked_of_other_code_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But what failed is still tried first."""
    before = Rounds(SOUND, tmp_path, max_examples=2)
    assert before.run_next()
    before.ledger.failing = [UNIT, "a unit that is gone"]
    before.ledger.save(tmp_path)
    monkeypatch.setattr(rounds_module, "code_version", lambda: "other")
    ledger = Rounds(SOUND, tmp_path).ledger
    assert (ledger.result.tally.batches, ledger.done) == (0, [])
    assert ledger.failing == [UNIT]


def test_a_check_that_crashes_is_a_failure_of_its_subject(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its traceback; the other subject goes on, here until it fails as well."""
    ran: list[str] = []

    def crash(subject: Subject, tally: Tally) -> None:
        ran.append(subject.name)
        if subject.name == SOUND or len(ran) > 3:
            raise ZeroDivisionError("planted")

    monkeypatch.setattr(rounds_module, "units_of", lambda subject: {"crash": crash})
    options = ["--folder", str(tmp_path), "--recorder=emulated"]
    other = "torch-decode:2"
    both = [f"--subject={SOUND}", f"--subject={other}"]
    assert soak.main([*options, *both, "--seconds=1e9"]) == 1
    assert capsys.readouterr().out.count("ZeroDivisionError: planted") == 2
    assert ledger_of(tmp_path, SOUND).failing == ["crash"]
    assert ledger_of(tmp_path, other).rounds == len(ran) - 2 > 0


@pytest.mark.usefixtures("decode_steps_alone")
def test_time_that_is_up_ends_a_soak_after_one_unit(tmp_path: Path) -> None:
    """Exit code 0, and never without a batch."""
    options = ["--folder", str(tmp_path), "--recorder=emulated", "--max-examples=2"]
    assert soak.main([*options, f"--subject={SOUND}", "--seconds=0"]) == 0
    assert len(ledger_of(tmp_path, SOUND).done) == 1


def test_the_job_ends_in_the_failure_and_exit_code_1(tmp_path: Path) -> None:
    """In processes of their own, as tox runs it."""
    name = faults.name_of(faults.never_replays, 1)
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "graphparity.conformance", "--profile", "soak"),
            *("--subject", name, "--minutes", "0.2", "--folder", str(tmp_path)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "replays of a recording: 0, but should be 1" in ended.stderr
    assert f"check_step(load_subject('{name}')" in ended.stderr
    assert "FAILED: " in ended.stdout
    assert ledger_of(tmp_path, name).failing == ["decode steps 8x8x8x8"]


def test_a_stopped_job_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table of what was soaked so far, and exit code 130, as of other programs."""
    asked: list[list[str]] = []

    def stop(runs: list[SuiteRun], **_: object) -> None:
        asked.extend([*run.subjects] for run in runs)
        raise KeyboardInterrupt

    monkeypatch.setattr(main_job, "run_all", stop)
    argv = ["soak", "--profile=soak", "--subject=torch-decode", f"--folder={tmp_path}"]
    monkeypatch.setattr(sys, "argv", argv)
    assert main_job.main() == 130
    assert (
        f"stopped; the same command goes on from {tmp_path}." in capsys.readouterr().out
    )
    assert asked == [["torch-decode:1", "torch-decode:2", "torch-decode:3"]]
