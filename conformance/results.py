"""What was proved of each subject, as a table."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

from graphparity.conformance.checks import Tally

_WIDTH = 112
"""Columns that the longest subject's row takes."""


@dataclass
class SubjectResult:
    """One subject's row."""

    subject: str
    recorder: str
    keys: int
    tally: Tally = field(default_factory=Tally)
    seconds: float = 0.0


def print_results(results: Iterable[SubjectResult]) -> None:
    """Print one row a subject; numbers are of this run."""
    table = Table(title="Replayed metadata equals the eager build's")
    table.add_column("subject", no_wrap=True)
    table.add_column("recorder")
    for name in ("keys", "batches", "steps replayed", "fields compared", "seconds"):
        table.add_column(name, justify="right")
    for result in results:
        table.add_row(
            result.subject,
            result.recorder,
            str(result.keys),
            f"{result.tally.batches:,}",
            f"{result.tally.steps_replayed:,}",
            f"{result.tally.fields_compared:,}",
            f"{result.seconds:.1f}",
        )
    console = Console()
    console.width = max(console.width, _WIDTH)
    console.print(table)
