"""A hunt: a fault is planted, and the profile runs until a check raises.

Without a fault, a hunt is a search for false alarms.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from unittest import mock

import hypothesis.core
from hypothesis import HealthCheck, Phase, settings
from hypothesis.errors import Flaky

from graphparity.conformance.comparer import ParityError
from graphparity.conformance.faults.fault import MAKING, Fault
from graphparity.conformance.profile import PROFILE
from graphparity.conformance.subjects.registry import fresh_subject
from graphparity.conformance.tally import Tally

MAX_EXAMPLES = 10
"""Batches a key, as in CI."""


@dataclass(frozen=True)
class Draws:
    """How batches are drawn."""

    max_examples: int = MAX_EXAMPLES
    shrinks: bool = False
    """Whether a batch that shows something is shrunk to the smallest that does."""
    seed: int | None = None
    """None draws the batches of CI."""


@dataclass(frozen=True)
class Finding:
    """What raised, and how."""

    check: str
    message: str
    num_batches: int
    """Batches until then, the one that raised included; with shrinking, those too that
    were tried for it.
    """
    repeat: str
    """A program that repeats it."""


def hunt(
    subject_name: str,
    fault: Fault | None,
    *,
    recorder: str = "emulated",
    checks: Iterable[str] = tuple(PROFILE),
    draws: Draws = Draws(),  # frozen
) -> Finding | None:
    """What catches ``fault``, or a false alarm if there is none; None if nothing does.

    Args:
        subject_name: the subject, made anew.
        fault: planted meanwhile.
        recorder: records the subject.
        checks: the checks of the profile to run, in that order.
        draws: how batches are drawn.

    Raises:
        Exception: whatever a check raises besides what it is there to raise: to crash
            is not to catch.
    """
    planted = nullcontext() if fault is None else fault.plant()
    with _hypothesis_settings(draws), planted:
        try:
            subject = fresh_subject(subject_name, recorder)
        except (ValueError, TypeError) as error:
            return Finding(MAKING, str(error), 0, _hunted(fault))
        tally = Tally()
        for name in checks:
            try:
                PROFILE[name](subject, tally)
            except ParityError as error:
                return _finding(fault, name, error, tally)
            except Flaky as flaky:
                (first, *_) = _parity_errors(flaky)
                return _finding(fault, name, first, tally, depends_on_before=True)
    return None


def _parity_errors(flaky: Flaky) -> list[ParityError]:
    """What failed on a batch's first run alone: it depends on the batches before."""
    found = [it for it in getattr(flaky, "exceptions", ()) if type(it) is ParityError]
    if not found:
        raise flaky
    return found


def _finding(
    fault: Fault | None,
    check: str,
    error: ParityError,
    tally: Tally,
    *,
    depends_on_before: bool = False,
) -> Finding:
    what, _, lines = str(error).partition("To repeat it:\n")
    repeat = _hunted(fault)
    if fault is not None and lines and not depends_on_before:
        # Another subject of that name may have been made before, without the fault.
        lines = lines.replace("load_subject(", "fresh_subject(")
        repeat = (
            "from graphparity.conformance.faults.catalogue import FAULTS\n"
            f"with FAULTS[{fault.name!r}].plant():\n{lines}"
        )
    num_batches = tally.batches + bool(lines)
    return Finding(check, what.strip(), num_batches, repeat)


def _hunted(fault: Fault | None) -> str:
    name = fault.name if fault is not None else ""
    return f"python -m graphparity.conformance.faults {name}"


@contextmanager
def _hypothesis_settings(draws: Draws) -> Iterator[None]:
    before = settings.get_current_profile_name()
    phases = [Phase.generate, *([Phase.shrink] if draws.shrinks else [])]
    settings.register_profile(
        "graphparity-hunt",
        max_examples=draws.max_examples,
        derandomize=draws.seed is None,
        database=None,
        deadline=None,
        phases=phases,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    settings.load_profile("graphparity-hunt")
    # What Hypothesis's own pytest plug-in sets for --hypothesis-seed.
    seeded = mock.patch.object(hypothesis.core, "global_force_seed", draws.seed)
    try:
        with seeded:
            yield
    finally:
        settings.load_profile(before)
