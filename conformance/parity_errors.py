"""The one error that a check raises: every difference, and how to see it again."""

from collections.abc import Collection

from graphparity.conformance.comparer import Difference, Mismatch, ParityError
from graphparity.conformance.decode_batches import DecodeBatch, Step
from graphparity.conformance.subjects.subject import Subject

_REPEAT = "from graphparity.conformance.repeat import *"


def raise_differences(
    subject: Subject,
    step: Step,
    found: Collection[Difference],
    *,
    title: str,
    call: str,
    item: int | None = None,
) -> None:
    """Raise ``ParityError`` with every difference and a snippet that repeats it.

    Args:
        subject: whose build was compared.
        step: the step that was built.
        found: the differences; none raises nothing.
        title: what was compared with what.
        call: the call that compares it again.
        item: the step's place in a history, from 1; None outside histories.
    """
    if not found:
        return
    raise ParityError(
        Mismatch(
            subject.name,
            title,
            tuple(found),
            _groups(subject, found),
            key=step.key if isinstance(step, DecodeBatch) else None,
            item=item,
            step=repr(step),
            repeat=f"{_REPEAT}\n{call}",
        )
    )


def raise_found(subject: Subject, title: str, found: Collection[Difference]) -> None:
    """Raise ``ParityError`` with every difference, where no step repeats it.

    Args:
        subject: what was compared.
        title: what of it was compared with what.
        found: the differences; none raises nothing.
    """
    if found:
        groups = _groups(subject, found)
        raise ParityError(Mismatch(subject.name, title, tuple(found), groups))


def _groups(subject: Subject, found: Collection[Difference]) -> tuple[str, ...]:
    return tuple(subject.group_of_path[it.path] for it in found)
