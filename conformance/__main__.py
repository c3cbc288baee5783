"""The main job: prove every subject, one process each, and print what was proved.

``python -m graphparity.conformance`` runs the suite on vLLM's DeepSeek-V4.1 in both
GPU flavours, on vLLM's own specialized state, on its default model state, and on its
state of hybrids. A process holds one GPU flavour; as many run at a time as there are
cores.

``--profile dev`` draws little, of plain torch unless ``--subject`` says otherwise.
``--profile soak`` goes on for ``--minutes`` with other batches, from where the run
before left its folder.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from graphparity.conformance.main_job import SuiteRun, run_all
from graphparity.conformance.results import print_results
from graphparity.conformance.run_profiles import CI, DEV, SESSION_PROFILES, SOAK
from graphparity.conformance.soak.soak_run import soak_runs
from graphparity.conformance.subjects.registry import (
    FAMILIES,
    names_of_subjects,
)

MAIN_RUNS = [
    ("deepseek-v41-blackwell",),
    ("vllm-specialized-decode",),
    ("deepseek-v41-hopper",),
    (
        "default-flash-attn:1",
        "default-flash-attn-off-ladder:1",
        "default-flash-attn-off-ladder:3",
        "default-flash-attn-window:2",
        "default-flash-attn-two-groups:1",
        "default-triton-attn:1",
        "default-triton-attn-two-groups:3",
        "mamba-hybrid-gdn:2",
        "mamba-hybrid-linear-attn:1",
        "mamba-hybrid-mamba2:1",
        "mamba-hybrid-recoverssm:2",
        "mamba-hybrid-short-conv:3",
        "deepseek-v41-hopper-no-bounded-replay:2",
    ),
]
"""The subjects of the main job; those of one line share a process."""

DEV_RUNS = [("torch-decode",)]
"""The subjects of the ``dev`` profile."""


def main() -> int:
    """Run the suite on every subject asked for; 0 if all of it passed."""
    options = _options()
    names = [name for run in options.runs for name in run]
    if unknown := [name for name in names if not _is_known(name)]:
        print(
            f"unknown subject {', '.join(unknown)}: use one of {', '.join(FAMILIES)}, "
            "or the address module:callable of your own.",
            file=sys.stderr,
        )
        return 2
    return _soak(options) if options.profile == SOAK.name else _run_suite(options)


def _run_suite(options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as folder:
        runs = [
            SuiteRun(names, Path(folder) / f"{i}.json", _suite_options(options))
            for i, names in enumerate(options.runs)
        ]
        run_all(runs, jobs=options.jobs)
    return _report(runs)


def _soak(options: argparse.Namespace) -> int:
    runs = soak_runs(
        [names_of_subjects(names) for names in options.runs],
        options.folder,
        minutes=options.minutes,
        jobs=options.jobs,
        options=_shared_options(options),
    )
    try:
        run_all(runs, jobs=options.jobs, counted="seconds")
    except KeyboardInterrupt:
        print_results(result for run in runs for result in run.results)
        print(f"stopped; the same command goes on from {options.folder}.")
        return 130
    return _report(runs)


def _report(runs: Sequence[SuiteRun]) -> int:
    for run in runs:
        if not run.passed:
            Console(stderr=True).rule(f"{run.title} failed")
            print(run.output, file=sys.stderr)
    print_results(result for run in runs for result in run.results)
    failed = [run.title for run in runs if not run.passed]
    if failed:
        print(f"FAILED: {', '.join(failed)}")
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = _parser()
    options = parser.parse_args()
    if options.profile == SOAK.name and not options.minutes > 0:
        parser.error(f"--minutes {options.minutes:g} soaks nothing: give more than 0.")
    of_profile = DEV_RUNS if options.profile == DEV.name else MAIN_RUNS
    options.runs = [(name,) for name in options.subject or ()] or of_profile
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m graphparity.conformance", description=__doc__
    )
    parser.add_argument(
        "--subject",
        action="append",
        help=f"FAMILY or FAMILY:QUERY_LEN, repeatable; one of {', '.join(FAMILIES)}",
    )
    parser.add_argument(
        "--recorder", default="emulated", help="what records the builds"
    )
    parser.add_argument(
        "--profile",
        choices=(*SESSION_PROFILES, SOAK.name),
        default=CI.name,
        help="how much is drawn (default: what every change must pass)",
    )
    parser.add_argument(
        "--max-examples", help="random batches a key (default: the profile's)"
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=os.cpu_count() or 1,
        help="processes at a time (default: one a core)",
    )
    soak = parser.add_argument_group("--profile soak")
    soak.add_argument(
        "--minutes", type=float, default=60.0, help="how long (default: 60)"
    )
    soak.add_argument(
        "--folder",
        type=Path,
        default=Path(".soak"),
        help="what was soaked, and failing examples (default: .soak)",
    )
    return parser


def _is_known(name: str) -> bool:
    """Whether a subject's name is a family's or an address; the suite itself finds
    out whether the address leads anywhere.
    """
    return ":" in name or name in FAMILIES


def _shared_options(options: argparse.Namespace) -> list[str]:
    asked = options.max_examples
    examples = [] if asked is None else ["--max-examples", asked]
    return ["--recorder", options.recorder, *examples]


def _suite_options(options: argparse.Namespace) -> list[str]:
    return ["--conformance-profile", options.profile, *_shared_options(options)]


if __name__ == "__main__":
    sys.exit(main())
