"""One attention group's metadata build, taken alone so that it can be judged.

A state's ``prepare_attn`` builds its groups one after the other; whether a build may
be recorded is decided per group, from what it does.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

from graphparity.fastpath.runtime_batch import StepRows


class GroupBuild(Protocol):
    """The build of one attention group, over persistent buffers."""

    @property
    def name(self) -> str:
        """The builder's qualified class name, for people only: nothing is decided
        by it.
        """

    @property
    def location(self) -> str:
        """``file:line`` of the builder's ``build``: where to look for an operation of
        which no place is known.
        """

    @property
    def inputs(self) -> Mapping[str, torch.Tensor]:
        """Path -> device buffer that the runner fills and a build reads."""

    @property
    def outputs(self) -> Mapping[str, torch.Tensor]:
        """Path -> device buffer that the builder owns."""

    @property
    def rotating_inputs(self) -> Mapping[str, torch.Tensor]:
        """Path -> buffer of which each step uses another: never to be recorded."""

    def stage(self, rows: StepRows) -> Callable[[], object]:
        """Write a padded FULL decode step's inputs; returns its build.

        The build may be called any number of times while the inputs stand, and
        returns the group's metadata.
        """


def source_of(function: Any) -> str:
    """``file:line`` where a function or method is defined; "" if that is unknown."""
    while not hasattr(function, "__code__"):
        function = getattr(function, "func", getattr(function, "__func__", None))
        if function is None:
            return ""
    code = function.__code__
    return f"{code.co_filename}:{code.co_firstlineno}"
