"""What the prover says about one group's build: plain data, for people and programs."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from graphparity.fastpath.graph_key import GraphKey
from graphparity.fastpath.runtime_batch import StepRows
from graphparity.reference.padding import Padding


class Level(Enum):
    """How many keys and batches are judged."""

    OFF = "off"
    """None: the build is recorded unjudged."""
    SAMPLED = "sampled"
    """The smallest key, a padded one and the largest, a few batches each."""
    ALL = "all"
    """Every key, with more batches."""


class Check(Enum):
    """One kind of evidence, and what holds when it is met."""

    RECORDABLE_NODES = "a capture succeeds, and copies no host memory that goes stale"
    HOST_VALUES = "nodes and parameters are the same for all host values of the key"
    MOVED_POOL = "in another pool only pointers into the capture's own pool differ"
    REPLAY_EQUALS_EAGER = "a replay leaves in outputs and metadata what eager leaves"
    WRITE_SET = "a replay changes no input, or those alone that eager changes alike"
    STABLE_OUTPUTS = "metadata tensors stay at one place, in buffers that persist"


class FieldClass(Enum):
    """What a metadata field promises on replay."""

    EXACT = "equal to the eager build's"
    BOUND = "a host upper bound, frozen at its worst case"
    BOUND_AFFECTING = "on the device, and depends on a host bound: may affect numerics"
    IDENTITY = "the captured object, returned again"


@dataclass(frozen=True)
class Field:
    """One leaf of the metadata."""

    path: str
    field_class: FieldClass
    reason: str
    padding: Padding | None = None
    """What lies past the live rows; None for a leaf without padded rows."""
    padding_reason: str = ""
    is_longest: bool = False
    """Of a bound: every eager build holds the length of the step's longest sequence."""
    is_made_anew: bool = False
    """Of an opaque object: every eager build makes one of its own."""


@dataclass(frozen=True)
class BatchPair:
    """The batch a build was recorded with, and the one it was replayed with; the
    same one twice where a single batch shows it.
    """

    recorded: StepRows
    replayed: StepRows


@dataclass(frozen=True)
class Refusal:
    """Why a build must stay eager."""

    check: Check
    operation: str
    """Such as ``aten.add_.Tensor``; "" where no operation of the build is at fault."""
    field: str
    """Path of the metadata field or buffer; "" where none is known."""
    location: str
    """``file:line`` of the builder."""
    reason: str
    """One sentence."""
    key: GraphKey
    batches: BatchPair
    """The smallest pair found that shows it."""


@dataclass(frozen=True)
class Verdict:
    """Whether a group's build may be recorded, and on what evidence."""

    builder: str
    recordable: bool
    level: Level
    checks_passed: tuple[Check, ...] = ()
    refusal: Refusal | None = None
    fields: tuple[Field, ...] = ()
    in_place_inputs: tuple[str, ...] = ()
    """Inputs that the eager build and the replay change alike."""
    nodes_per_key: Mapping[GraphKey, int] = field(default_factory=dict)
    shares_rungs: bool = False
    """Whether the recording of a rung's largest key was seen to serve the others."""

    @property
    def is_judged(self) -> bool:
        """Whether there is evidence at all."""
        return self.level is not Level.OFF

    def to_json(self) -> str:
        """The verdict as a JSON object; keys are lists, enum members their names."""
        plain = asdict(self) | {"judged": self.is_judged}
        plain["nodes_per_key"] = [
            {"key": list(key), "nodes": nodes}
            for key, nodes in self.nodes_per_key.items()
        ]
        return json.dumps(_plain(plain), indent=2)


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value
