"""The rounds of one subject, unit by unit, on its ledger."""

import traceback
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

from hypothesis.database import DirectoryBasedExampleDatabase

from graphparity.conformance.comparer import ParityError
from graphparity.conformance.results import SubjectResult
from graphparity.conformance.run_profiles import SOAK
from graphparity.conformance.soak.ledger import (
    Ledger,
    code_version,
    ledger_path,
    read_ledger,
)
from graphparity.conformance.soak.units import units_of
from graphparity.conformance.subjects.registry import load_subject
from graphparity.conformance.tally import key_id


class Rounds:
    """A subject's rounds, from where its ledger in the folder stands.

    Args:
        name: the subject's.
        folder: of the soak; made where it is missing.
        recorder: records the subject.
        max_examples: random batches of a unit.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        recorder: str = "emulated",
        max_examples: int = SOAK.max_examples,
    ) -> None:
        self._folder, self._max_examples = folder, max_examples
        self._subject = load_subject(name, recorder)
        self._units = units_of(self._subject)
        self.ledger = self._taken_up() or self._new()

    def run_next(self) -> bool:
        """Run the next unit; False if it failed, which the ledger tells.

        Units with a kept example come first; it is what their check is given first.
        """
        ledger = self.ledger
        unit = next(iter(ledger.failing), None) or self._next_of_round()
        SOAK.load(self._max_examples, database=self._examples(unit))
        begin = monotonic()
        try:
            self._units[unit](self._subject, ledger.result.tally)
        # A check that crashes is a failure too; the other subjects go on.
        except Exception as error:  # noqa: BLE001
            self._failed(unit, error)
            return False
        finally:
            ledger.result.seconds += monotonic() - begin
            ledger.save(self._folder)
        self._passed(unit)
        return True

    def _next_of_round(self) -> str:
        return next(name for name in self._units if name not in self.ledger.done)

    def _passed(self, unit: str) -> None:
        ledger = self.ledger
        if unit in ledger.failing:
            ledger.failing.remove(unit)
        if not ledger.failing:
            ledger.message = ""
        if unit not in ledger.done:
            ledger.done.append(unit)
        if len(ledger.done) == len(self._units):
            ledger.rounds, ledger.done = ledger.rounds + 1, []
        ledger.save(self._folder)

    def _failed(self, unit: str, error: Exception) -> None:
        if unit not in self.ledger.failing:
            self.ledger.failing.append(unit)
        told = "\n".join(_parity_errors(error))
        self.ledger.message = (
            f"{unit} of {self._subject.name}, in round {self.ledger.rounds + 1}:\n"
            + (told or "".join(traceback.format_exception(error)))
        )

    def _examples(self, unit: str) -> DirectoryBasedExampleDatabase:
        of_subject = self._folder / ledger_path(self._subject.name).parent
        return DirectoryBasedExampleDatabase(of_subject / "examples" / unit)

    def _taken_up(self) -> Ledger | None:
        """The ledger in the folder; None if there is none. What was checked of other
        code, or on another recorder, no longer counts.
        """
        found = read_ledger(self._folder, self._subject.name)
        if found is None:
            return None
        new = self._new()
        new.failing = [name for name in found.failing if name in self._units]
        is_same = found.code == new.code
        return (
            found if is_same and found.result.recorder == new.result.recorder else new
        )

    def _new(self) -> Ledger:
        subject = self._subject
        result = SubjectResult(
            subject.name,
            subject.recorder.name,
            len(subject.graph_keys),
            key_ids=[key_id(key) for key in subject.graph_keys],
            groups=subject.group_of_path.names,
        )
        return Ledger(result, code_version())


def _parity_errors(error: BaseException) -> Iterator[str]:
    """What each ``ParityError`` says; several come as a group."""
    if isinstance(error, ParityError):
        yield str(error)
    for member in getattr(error, "exceptions", ()):
        yield from _parity_errors(member)
