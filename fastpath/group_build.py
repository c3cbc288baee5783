"""One attention group's metadata build, taken alone so that it can be judged.

A state's ``prepare_attn`` builds its groups one after the other; whether a build may
be recorded is decided per group, from what it does.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

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
