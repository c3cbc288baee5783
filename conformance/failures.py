"""What a failed test found, as plain data: of each error its differences by group.

Hypothesis raises what it found last, which is the smallest; several distinct ones come
as a group, each of which is a failure of its own.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from graphparity.conformance.comparer import ParityError
from graphparity.conformance.tally import key_id

_MAX_MESSAGE = 2000
"""Characters kept of an error that is no ``ParityError``."""


@dataclass(frozen=True)
class FoundDifference:
    """One differing path."""

    path: str
    group: str
    """The attention group that it is of."""
    actual: str
    expected: str


@dataclass(frozen=True)
class Failure:
    """One error of one test."""

    test: str
    subject: str
    title: str
    """What was compared with what; of other errors, their type."""
    key: str = ""
    """``key_id`` of the step; "" where the error is of none."""
    item: int | None = None
    """The step's place in a history, from 1; None outside histories."""
    step: str = ""
    found: list[FoundDifference] = field(default_factory=list)
    repeat: str = ""
    """Python that compares the step again; "" where nothing does."""
    message: str = ""
    """Of an error that is no ``ParityError``."""


def failures_of(test: str, subject: str, error: BaseException) -> Iterator[Failure]:
    """The failures that a test's error tells of.

    Args:
        test: the test's name.
        subject: the name of the subject that it is of.
        error: what it raised.
    """
    if isinstance(error, BaseExceptionGroup):
        for member in error.exceptions:
            yield from failures_of(test, subject, member)
    elif isinstance(error, ParityError):
        yield _parity_failure(test, error)
    else:
        message = str(error)[:_MAX_MESSAGE]
        yield Failure(test, subject, type(error).__name__, message=message)


def _parity_failure(test: str, error: ParityError) -> Failure:
    mismatch = error.mismatch
    return Failure(
        test,
        mismatch.subject,
        mismatch.title,
        key="" if mismatch.key is None else key_id(mismatch.key),
        item=mismatch.item,
        step=mismatch.step,
        found=[
            FoundDifference(it.path, group, it.actual, it.expected)
            for it, group in zip(mismatch.found, mismatch.groups, strict=True)
        ],
        repeat=mismatch.repeat,
    )
