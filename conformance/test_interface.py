"""Every subject can be called as a ``ModelState`` is."""

import inspect

import pytest

from graphparity.conformance.subjects.subject import REQUIRED_METHODS, Subject
from graphparity.reference.interface import ModelState


@pytest.mark.parametrize("method", REQUIRED_METHODS)
def test_subject_takes_the_interface_s_arguments(subject: Subject, method: str) -> None:
    """Names and order; a method that forwards ``*args`` takes them all."""
    expected = list(inspect.signature(getattr(ModelState, method)).parameters)[1:]
    actual = inspect.signature(getattr(subject.state, method)).parameters
    if all(p.kind is not p.VAR_POSITIONAL for p in actual.values()):
        assert list(actual)[: len(expected)] == expected
