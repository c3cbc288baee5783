"""What was proved of each subject, as a table."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from graphparity.conformance.tally import Tally

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
    key_ids: list[str] = field(default_factory=list)
    """``key_id`` of every recorded key, largest first."""
    groups: list[str] = field(default_factory=list)
    """The attention groups, in the order of the KV-cache groups."""

    @classmethod
    def of_json(cls, row: Mapping[str, Any]) -> "SubjectResult":
        """The row whose ``dataclasses.asdict`` is ``row``."""
        return cls(**{**row, "tally": Tally.of_json(row["tally"])})


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
