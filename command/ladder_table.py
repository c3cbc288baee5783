"""The keys of a ladder as a table in the terminal."""

from collections.abc import Iterator

from rich.box import SIMPLE_HEAD
from rich.table import Table

from graphparity.command.ladder_steps import EagerSteps, LadderSteps, padding_of
from graphparity.command.output import console, counted

_BAR_WIDTH = 12
_COLUMNS = ("num_reqs", "num_tokens")


def print_ladder(steps: LadderSteps) -> None:
    """Print a row a key, and below what is not recorded."""
    out = console()
    if steps.keys:
        out.print(_table(steps))
    for line in ladder_notes(steps):
        out.print(line, soft_wrap=True)


def ladder_notes(steps: LadderSteps) -> Iterator[str]:
    """What the keys alone do not tell, a sentence each."""
    graphs = counted(len(steps.rungs), "FULL graph")
    yield (
        f"{counted(len(steps.keys), 'key')} on {graphs}; {steps.padding_share:.0%} of "
        "their tokens are padding."
    )
    for eager in steps.eager:
        yield eager_sentence(eager, steps.query_len)
    for size, why in steps.without_graph.items():
        yield f"Capture size {size} has no FULL graph of decodes: {why}."


def eager_sentence(eager: EagerSteps, query_len: int) -> str:
    """Which steps they are, and how they run."""
    first, last = eager.first_num_reqs, eager.last_num_reqs
    requests = (f"{first} to " if first < last else "") + counted(last, "request")
    runs = "without a graph" if eager.mode == "NONE" else f"as {eager.mode}"
    return (
        f"Steps of {requests} of {counted(query_len, 'token')} fit no FULL graph: they "
        f"run {runs}, and their metadata is built eagerly."
    )


def _table(steps: LadderSteps) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in _COLUMNS:
        table.add_column(name, justify="right")
        table.add_column(f"{name}_\nafter_padding", justify="right", no_wrap=True)
    table.add_column("padding", justify="right")
    table.add_column(" " * _BAR_WIDTH, no_wrap=True)
    for key in steps.keys:
        share = padding_of(key)
        bar = "█" * round(share * _BAR_WIDTH)
        table.add_row(*map(str, key), f"{share:.0%}", bar)
    return table
