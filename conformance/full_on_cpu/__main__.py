"""Runs the scenarios given as JSON objects; each outcome is a line of JSON."""

import json
import sys

from graphparity.conformance.full_on_cpu.drafts import note_drafts
from graphparity.conformance.full_on_cpu.engine import prepare_process, run
from graphparity.conformance.full_on_cpu.full_graphs import emulate_full_graphs
from graphparity.conformance.full_on_cpu.ranks import fork_workers
from graphparity.conformance.full_on_cpu.scenarios import Scenario
from graphparity.conformance.full_on_cpu.weights import draw_weights


def main(arguments: list[str]) -> None:
    """Run them in this order, in this process."""
    prepare_process()
    draw_weights()
    note_drafts()
    fork_workers()
    for argument in arguments or ["{}"]:
        scenario = Scenario(**json.loads(argument))
        if scenario.is_full:
            emulate_full_graphs()
        print(json.dumps(run(scenario)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
