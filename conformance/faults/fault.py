"""A planted fault: what goes wrong, the public report it mirrors, what must catch it.

A fault is described once, by the function that plants it: its name says what the faulty
code does, its docstring says it in a sentence.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Kind(Enum):
    """The kinds of public reports."""

    K1 = "stale padded tail"
    K2 = "sentinel disagreement"
    K3 = "host scalar or branch baked at capture"
    K4 = "unstable address"
    K5 = "plan not refreshed"
    K6 = "eligibility and keys"
    K7 = "capture layout is not the replay's"
    K8 = "races on reused buffers"
    K9 = "illegal or lazy work during capture"
    K10 = "side streams and pools"
    K11 = "lifecycle"
    K12 = "ranks diverge"
    K13 = "buffer too small for the padded shape"
    K14 = "wiring"


class Layer(Enum):
    """Where a fault lies, and so what its row rests on."""

    BUILD = "the build, under any recorder"
    STATE = "the state or its lifecycle, under any recorder"
    EMULATED = "the emulated recorder, or what it alone refuses and fills"
    CUDA = "the CUDA recorder, so a GPU"


MAKING = "making the subject"
"""In place of a check: the keys, the seam or a recording were refused with an error."""

Plant = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Fault:
    """One planted fault."""

    name: str
    words: str
    """One sentence: what the faulty code does."""
    kind: Kind
    mirrors: tuple[str, ...]
    """The public reports whose root cause it repeats."""
    check: str
    """The check of the profile that must catch it."""
    expected: str
    """A line of that check's message, as a regular expression."""
    plant: Plant
    """While its context manager is active, subjects that are made have the fault."""
    layer: Layer
    subject: str

    def is_plantable(self, recorder: str) -> bool:
        """Whether the fault can come true under the recorder of that name."""
        needed = {Layer.EMULATED: "emulated", Layer.CUDA: "cuda"}
        return needed.get(self.layer, recorder) == recorder


def fault(
    kind: Kind,
    *mirrors: str,
    check: str,
    expected: str,
    layer: Layer = Layer.BUILD,
    subject: str = "torch-decode:2",
) -> Callable[[Plant], Fault]:
    """Make a fault of the function that plants it."""

    def of(plant: Plant) -> Fault:
        return Fault(
            name=plant.__name__,
            words=" ".join((plant.__doc__ or "").split()),
            kind=kind,
            mirrors=mirrors,
            check=check,
            expected=expected,
            plant=plant,
            layer=layer,
            subject=subject,
        )

    return of
