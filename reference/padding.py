"""What a metadata field holds past its live rows.

Place: every metadata dataclass of the reference gives its fields the
metadata of ``declared``; a comparison of two builds reads the declaration with
``padding_of`` and ``live_of``.
Invariant: a field that declares nothing has no padded region (host values,
tensors passed through whole).
"""

import dataclasses
from enum import Enum
from typing import Any, Literal

Live = Literal["num_reqs", "num_tokens"]


class Padding(Enum):
    """What the region past a tensor's live rows holds in a padded FULL step."""

    SENTINEL = "sentinel"
    """A declared value: compared exactly."""
    REQUEST_0 = "request_0"
    """Unmapped padding tokens map to request 0: compared exactly, with 0."""
    UNSPECIFIED = "unspecified"
    """Left open by vLLM and read by no kernel: not compared."""


def declared(padding: Padding, live: Live = "num_tokens") -> dict[str, object]:
    """The ``metadata`` of a dataclass field that holds a padded tensor.

    Args:
        padding: what the rows past the live ones hold.
        live: what counts the live rows of the tensor's first axis.
    """
    return {"padding": padding, "live": live}


def padding_of(field: "dataclasses.Field[Any]") -> Padding | None:
    """The padding class of a metadata field; None where it declares none."""
    padding: Padding | None = field.metadata.get("padding")
    return padding


def live_of(field: "dataclasses.Field[Any]") -> Live | None:
    """What counts the live rows of a metadata field; None where undeclared."""
    live: Live | None = field.metadata.get("live")
    return live
