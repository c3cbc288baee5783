"""The main job: prove every subject, one process each, and print what was proved.

``python -m graphparity.conformance`` runs the suite on vLLM's DeepSeek-V4.1 in both
GPU flavours, on vLLM's own specialized state, on its default model state, and on its
state of hybrids. A process holds one GPU flavour; as many run at a time as there are
cores.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from graphparity.conformance.main_job import SuiteRun, run_all
from graphparity.conformance.results import print_results
from graphparity.conformance.subjects.registry import FAMILIES

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
    with tempfile.TemporaryDirectory() as folder:
        runs = [
            SuiteRun(names, Path(folder) / f"{i}.json", _pytest_options(options))
            for i, names in enumerate(options.runs)
        ]
        run_all(runs, jobs=options.jobs)
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
    parser.add_argument("--max-examples", default="10", help="random batches a key")
    parser.add_argument(
        "--jobs",
        type=int,
        default=os.cpu_count() or 1,
        help="processes at a time (default: one a core)",
    )
    options = parser.parse_args()
    options.runs = [(name,) for name in options.subject or ()] or MAIN_RUNS
    return options


def _is_known(name: str) -> bool:
    """Whether a subject's name is a family's or an address; the suite itself finds
    out whether the address leads anywhere.
    """
    return ":" in name or name in FAMILIES


def _pytest_options(options: argparse.Namespace) -> list[str]:
    return ["--recorder", options.recorder, "--max-examples", options.max_examples]


if __name__ == "__main__":
    sys.exit(main())
