"""Plant every fault and see what catches it: a table, and exit status 1 on an escape.

With names, each of those faults is shown with the smallest batch that catches it.
"""

import argparse
import logging
import sys
from pathlib import Path

from graphparity.conformance.faults.catalogue import FAULTS
from graphparity.conformance.faults.hunt import Draws, hunt
from graphparity.conformance.faults.report import Caught, page, print_table
from graphparity.conformance.subjects.recorders import RECORDERS
from graphparity.conformance.subjects.registry import query_lens_of

TORCH_SUBJECTS = [f"torch-decode:{it}" for it in query_lens_of("torch-decode")]


def main(arguments: list[str] | None = None) -> int:
    """Run what the arguments ask for; returns the exit status."""
    parsed = _parser().parse_args(arguments)
    logging.disable(logging.WARNING)  # refused keys are what some faults are about
    if parsed.sound:
        return _hunt_false_alarms(parsed.sound, parsed.recorder)
    plantable = [it.name for it in FAULTS.values() if it.is_plantable(parsed.recorder)]
    names = parsed.faults or plantable
    unknown = [name for name in names if name not in FAULTS]
    if unknown:
        print(f"unknown faults {', '.join(unknown)}: use some of {', '.join(FAULTS)}.")
        return 2
    caught = []
    for name in names:
        draws = Draws(shrinks=bool(parsed.faults))
        fault = FAULTS[name]
        finding = hunt(fault.subject, fault, recorder=parsed.recorder, draws=draws)
        caught.append(Caught(fault, finding))
        if parsed.faults and finding:
            print(f"{name}: {fault.words}\n{finding.message}\nTo repeat it:")
            print(finding.repeat)
    print_table(caught)
    if parsed.out:
        left_out = [it for it in FAULTS.values() if it.name not in names]
        parsed.out.write_text(page(caught, left_out) + "\n")
    return int(not all(it.as_expected for it in caught))


def _hunt_false_alarms(num_seeds: int, recorder: str) -> int:
    """Run the whole profile on sound subjects, each time with other batches."""
    alarms = 0
    for seed in range(num_seeds):
        name = TORCH_SUBJECTS[seed % len(TORCH_SUBJECTS)]
        alarm = hunt(name, None, recorder=recorder, draws=Draws(seed=seed))
        alarms += alarm is not None
        print(f"seed {seed}, {name}: {alarm.message if alarm else 'no alarm'}")
    return int(alarms > 0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m graphparity.conformance.faults", description=__doc__
    )
    parser.add_argument("faults", nargs="*", help="names; all faults if none is given")
    parser.add_argument("--recorder", default="emulated", choices=RECORDERS)
    parser.add_argument("--out", type=Path, help="write the table there, as Markdown")
    parser.add_argument(
        "--sound",
        type=int,
        metavar="SEEDS",
        help="plant nothing, and run the profile with so many seeds: an alarm is false",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
