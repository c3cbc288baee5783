"""What ``doctor`` finds, in the terminal."""

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from graphparity.command.examination import Examination, Need, State

_MARKS = {State.MET: "[green]✓[/]", State.UNMET: "[red]✗[/]", State.IN_SERVER: "?"}


def print_examination(examination: Examination, out: Console) -> None:
    """Print what is installed, the needs by how they stand, and the next step."""
    installed = Table("installed", "", box=SIMPLE_HEAD, pad_edge=False)
    for name, version in examination.installed.items():
        installed.add_row(name, version)
    out.print(installed)
    for state in State:
        needs = [need for need in examination.needs if need.state is state]
        if needs:
            out.print(_table(state, needs))
    verdict = "Ready." if examination.is_ready else "Not ready."
    out.print(f"{verdict} {examination.next_step}", markup=False, soft_wrap=True)


def _table(state: State, needs: list[Need]) -> Table:
    table = Table("", state.value, box=SIMPLE_HEAD, pad_edge=False)
    for need in needs:
        table.add_row(_MARKS[state], need.words)
    return table
