"""What a run has checked so far: in all, and by graph key and attention group.

Every field counted in all is counted in one cell too, so the cells of a tally add up to
its total. What recordings froze is learnt from what replays returned: a host value that
every replay of a key returned alike.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from graphparity.fastpath.graph_key import GraphKey

NO_KEY = "eager"
"""The row of steps that no recording serves."""


def key_id(key: GraphKey | None) -> str:
    """A key's four numbers, as tests and rows are named: ``3x4x6x8``."""
    return NO_KEY if key is None else "x".join(map(str, key))


@dataclass
class Cell:
    """What was checked of one attention group in the steps of one key."""

    steps_replayed: int = 0
    """Replayed steps whose recording built the group."""
    fields_compared: int = 0


@dataclass
class Tally:
    """What a run has checked so far."""

    batches: int = 0
    decode_steps: int = 0
    """Steps that a replay should have served."""
    steps_replayed: int = 0
    fields_compared: int = 0
    cells: dict[str, dict[str, Cell]] = field(default_factory=dict)
    """``key_id`` -> attention group -> what was checked of it."""
    frozen: dict[str, dict[str, dict[str, str | None]]] = field(default_factory=dict)
    """Attention group -> field -> ``key_id`` -> the value that every replay of the key
    returned; None where two replays returned different ones."""

    @classmethod
    def of_json(cls, row: Mapping[str, Any]) -> "Tally":
        """The tally whose ``dataclasses.asdict`` is ``row``."""
        cells = {
            key: {group: Cell(**cell) for group, cell in cells.items()}
            for key, cells in row["cells"].items()
        }
        return cls(**{**row, "cells": cells})

    def count_batch(self, key: GraphKey | None, num_fields: Mapping[str, int]) -> None:
        """Count one checked batch.

        Args:
            key: of the recording that should serve it; None if none should.
            num_fields: attention group -> its compared fields.
        """
        self.batches += 1
        for group, count in num_fields.items():
            self.fields_compared += count
            self._cell(key, group).fields_compared += count

    def count_decode_step(
        self, key: GraphKey, num_replays: int, groups: Iterable[str]
    ) -> None:
        """Count one checked decode step, and the replays that built ``groups``."""
        self.decode_steps += 1
        self.steps_replayed += num_replays
        for group in groups:
            self._cell(key, group).steps_replayed += num_replays

    def note_frozen(self, key: GraphKey, group: str, name: str, value: str) -> None:
        """Note that a replay of ``key`` returned ``value`` as a group's field."""
        values = self.frozen.setdefault(group, {}).setdefault(name, {})
        if values.setdefault(key_id(key), value) != value:
            values[key_id(key)] = None

    def _cell(self, key: GraphKey | None, group: str) -> Cell:
        return self.cells.setdefault(key_id(key), {}).setdefault(group, Cell())
