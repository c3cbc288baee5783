"""A soak as a run of the main job: its processes, and what their ledgers tell."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from graphparity.conformance.main_job import SuiteRun
from graphparity.conformance.results import SubjectResult
from graphparity.conformance.soak.ledger import Ledger, ledger_path, read_ledger


class SoakRun(SuiteRun):
    """The soak of some subjects in a process of its own.

    Args:
        subjects: names, of one GPU flavour.
        folder: holds their ledgers.
        seconds: how long the subjects are soaked, together; set up is not counted.
        options: those of ``graphparity.conformance.soak`` besides.
    """

    def __init__(
        self, subjects: Sequence[str], folder: Path, seconds: int, options: list[str]
    ) -> None:
        of_first = folder / ledger_path(subjects[0]).parent
        of_first.mkdir(parents=True, exist_ok=True)
        super().__init__(subjects, of_first / "run.json", options)
        self._folder, self._seconds = folder, seconds
        self._soaked_before = self.soaked_seconds

    @property
    def soaked_seconds(self) -> float:
        """Seconds that its subjects were soaked in all runs on the folder."""
        return sum(it.result.seconds for it in self._ledgers())

    @property
    def title(self) -> str:
        """The subjects, and how far they are."""
        ledgers = self._ledgers()
        rounds = min((it.rounds for it in ledgers), default=0)
        batches = sum(it.result.tally.batches for it in ledgers)
        return f"{super().title}: round {rounds + 1}, {batches:,} batches"

    @property
    def results(self) -> list[SubjectResult]:
        """What was checked in all runs on the folder."""
        return [it.result for it in self._ledgers()]

    def refresh(self) -> dict[str, Any]:
        """Seconds soaked in this run, of those that there are."""
        super().refresh()
        soaked = round(self.soaked_seconds - self._soaked_before)
        self._progress = {
            "tests": self._seconds,
            "done": min(self._seconds, soaked),
            "failed": sum(bool(it.failing) for it in self._ledgers()),
        }
        return self._progress

    def _module_and_arguments(self) -> list[str]:
        return [
            "graphparity.conformance.soak",
            *(f"--subject={subject}" for subject in self.subjects),
            *("--folder", str(self._folder), "--seconds", str(self._seconds)),
            *self._options,
        ]

    def _ledgers(self) -> list[Ledger]:
        found = (read_ledger(self._folder, name) for name in self.subjects)
        return [ledger for ledger in found if ledger is not None]


def soak_runs(
    runs: Sequence[Sequence[str]],
    folder: Path,
    *,
    minutes: float,
    jobs: int,
    options: list[str],
) -> list[SoakRun]:
    """The processes of a soak, least soaked first, so that a soak that was stopped goes
    on with those that it had not come to.

    Args:
        runs: the subjects of each process.
        folder: holds their ledgers.
        minutes: how long all of them take together, ``jobs`` at a time.
        jobs: processes at a time.
        options: as those of ``SoakRun``.
    """
    share = min(1.0, jobs / len(runs))
    seconds = max(1, round(60 * minutes * share))
    made = [SoakRun(names, folder, seconds, options) for names in runs]
    return sorted(made, key=lambda run: run.soaked_seconds)
