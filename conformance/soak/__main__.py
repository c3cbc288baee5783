"""Soak some subjects in this process: ``python -m graphparity.conformance.soak``.

The main job starts it (``--profile soak``), as a process holds one GPU flavour only.
Subjects take turns, a unit each, until the time is up; it ends after the unit at work.
A subject whose check fails is left; exit code 1 then, else 0.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

from graphparity.conformance.run_profiles import SOAK
from graphparity.conformance.soak.rounds import Rounds


def main(arguments: Sequence[str] | None = None) -> int:
    """Soak until the time is up, or no subject is left."""
    options = _parser().parse_args(arguments)
    sound = [
        Rounds(name, options.folder, options.recorder, options.max_examples)
        for name in options.subject
    ]
    failed: list[Rounds] = []
    end = monotonic() + options.seconds
    while sound:
        rounds = min(sound, key=lambda it: it.ledger.result.seconds)
        if not rounds.run_next():
            print(rounds.ledger.message, flush=True)
            sound.remove(rounds)
            failed.append(rounds)
        if monotonic() >= end:
            break
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m graphparity.conformance.soak", description=__doc__
    )
    parser.add_argument("--subject", action="append", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--recorder", required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--max-examples", type=int, default=SOAK.max_examples)
    return parser


if __name__ == "__main__":
    sys.exit(main())
