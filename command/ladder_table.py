"""The keys of a ladder as a table in the terminal."""

from rich.table import Table

from graphparity.command.ladder_steps import LadderSteps
from graphparity.command.output import console


def print_ladder(ladder: LadderSteps) -> None:
    """Print a row a key, and what no recording serves."""
    table = Table(title=f"{len(ladder.keys)} keys on {len(ladder.rungs)} FULL graphs")
    for name in ("requests", "after padding", "tokens", "after padding", "padding"):
        table.add_column(name, justify="right")
    for key in ladder.keys:
        waste = 1 - key.num_tokens / key.num_tokens_after_padding
        table.add_row(*map(str, key), f"{waste:.0%}")
    out = console()
    out.print(table)
    for step in ladder.unrecorded:
        out.print(f"{step.num_reqs} requests: {step.mode}, built eagerly")
