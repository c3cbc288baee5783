"""The one error that a check raises: every difference, and how to see it again."""

from collections.abc import Collection

from graphparity.conformance.comparer import Difference, ParityError
from graphparity.conformance.decode_batches import DecodeBatch, Step
from graphparity.conformance.subjects.subject import Subject


def raise_differences(
    subject: Subject,
    step: Step,
    found: Collection[Difference],
    *,
    title: str,
    call: str,
    where: str = "",
) -> None:
    """Raise ``ParityError`` with every difference and a snippet that repeats it.

    Args:
        subject: whose build was compared.
        step: the step that was built.
        found: the differences; none raises nothing.
        title: what was compared with what.
        call: the call that compares it again.
        where: the step's place in a history.
    """
    if not found:
        return
    lines = "\n".join(f"  {difference}" for difference in found)
    key = f" [{step.key}]" if isinstance(step, DecodeBatch) else ""
    raise ParityError(
        f"{len(found)} difference(s): {title} of {subject.name}{key}{where}\n"
        f"{lines}\n"
        "To repeat it:\n"
        "  from graphparity.conformance.repeat import *\n"
        f"  {call}"
    )


def raise_found(subject: Subject, title: str, found: Collection[Difference]) -> None:
    """Raise ``ParityError`` with every difference, where no step repeats it.

    Args:
        subject: what was compared.
        title: what of it was compared with what.
        found: the differences; none raises nothing.
    """
    if found:
        lines = "\n".join(f"  {difference}" for difference in found)
        raise ParityError(
            f"{len(found)} difference(s): {title} of {subject.name}\n{lines}"
        )
