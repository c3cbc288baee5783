"""Suites in processes of their own, watched by one progress display."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from graphparity.conformance.results import SubjectResult

_POLL_SECONDS = 0.5
_QUIET_SECONDS = 20.0
"""How often progress is printed where there is no terminal to draw it on."""


class SuiteRun:
    """The suite on some subjects, in a process of its own."""

    def __init__(
        self,
        subjects: Sequence[str],
        progress_path: Path,
        pytest_options: Sequence[str],
    ) -> None:
        self.subjects = subjects
        self.output = ""
        self._progress_path = progress_path
        self._output_path = progress_path.with_suffix(".out")
        self._options = pytest_options
        self._process: subprocess.Popen[bytes] | None = None
        self._progress: dict[str, Any] = {
            **{"asked": [*subjects], "tests": 0, "done": 0, "failed": 0}
        }

    def start(self) -> None:
        """Start the process."""
        threads = {"OMP_NUM_THREADS": "1"}  # tensors are small; processes are many
        with self._output_path.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *self._module_and_arguments()],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | threads,
            )

    def _module_and_arguments(self) -> list[str]:
        return [
            *("pytest", "--pyargs", "graphparity.conformance"),
            *("-p", "graphparity.conformance.pytest_plugin", "-p", "no:cacheprovider"),
            # Tests of our own parts, and of the plug-in, are other jobs.
            *("--ignore-glob", "/*/meta/*", "--ignore-glob", "/*/test_vllm_engine*"),
            *("-q", "--no-header", "--tb=short"),
            *(f"--subject={subject}" for subject in self.subjects),
            *("--progress-file", str(self._progress_path)),
            *self._options,
        ]

    @property
    def title(self) -> str:
        """The first subject, and how many more."""
        more = len(self.subjects) - 1
        return self.subjects[0] + (f" and {more} more" if more else "")

    @property
    def started(self) -> bool:
        """Whether the process was started."""
        return self._process is not None

    @property
    def running(self) -> bool:
        """Whether the process is at work."""
        return self._process is not None and self._process.poll() is None

    @property
    def passed(self) -> bool:
        """Whether the suite ended, ran something, and all of it passed."""
        return (
            self._process is not None
            and self._process.returncode == 0
            and self._progress["done"] > 0
        )

    @property
    def results(self) -> list[SubjectResult]:
        """What was proved so far."""
        return [SubjectResult.of_json(row) for row in self._progress.get("results", ())]

    def refresh(self) -> dict[str, Any]:
        """Read the suite's progress and output."""
        if self._progress_path.exists():
            self._progress = json.loads(self._progress_path.read_text())
        if self._output_path.exists():
            self.output = self._output_path.read_text(errors="replace")
        return self._progress

    @property
    def progress(self) -> dict[str, Any]:
        """What ``--progress-file`` held last, and what a suite that ended by itself
        and did not pass printed.
        """
        failed = self.started and not self.running and not self.passed
        return {**self._progress, "output": self.output if failed else ""}

    def stop(self) -> None:
        """End the process if it is at work."""
        if self._process is not None and self.running:
            self._process.terminate()
            self._process.wait()


def run_all(runs: Sequence[SuiteRun], *, jobs: int, counted: str = "tests") -> None:
    """Run every suite, ``jobs`` at a time, in the order given; what their progress
    counts is called ``counted``.
    """
    console = Console()
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(f"{counted}, {{task.fields[failed]}} failed"),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    tasks = {run: progress.add_task(run.title, failed=0, start=False) for run in runs}
    try:
        with progress:
            _watch(runs, jobs, progress, tasks, console, counted)
    finally:
        for run in runs:
            run.stop()


def _watch(
    runs: Sequence[SuiteRun],
    jobs: int,
    progress: Progress,
    tasks: dict[SuiteRun, TaskID],
    console: Console,
    counted: str,
) -> None:
    printed = time.monotonic()
    while not all(run.started and not run.running for run in runs):
        for run in _next_to_start(runs, jobs):
            run.start()
            progress.start_task(tasks[run])
        time.sleep(_POLL_SECONDS)
        for run in runs:
            counts = run.refresh()
            progress.update(
                tasks[run],
                description=run.title,
                total=counts["tests"] or None,
                completed=counts["done"],
                failed=counts["failed"],
            )
        if not console.is_terminal and time.monotonic() - printed > _QUIET_SECONDS:
            printed = time.monotonic()
            console.print(_one_line(runs, counted))


def _next_to_start(runs: Sequence[SuiteRun], jobs: int) -> Iterable[SuiteRun]:
    free = max(1, jobs) - sum(run.running for run in runs)
    return [run for run in runs if not run.started][:free]


def _one_line(runs: Sequence[SuiteRun], counted: str) -> str:
    counts = ((run.title, run.refresh()) for run in runs if run.started)
    return "; ".join(f"{name} {c['done']}/{c['tests']} {counted}" for name, c in counts)
