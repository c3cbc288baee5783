"""Host values of the metadata: what the prover takes for equal, a bound, or frozen."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

import pytest

from graphparity.conformance.builders import wrong_builders as plain
from graphparity.conformance.meta.fastpath.test_prover_refuses import KEYS, judged
from graphparity.fastpath.proving.verdict import Check, FieldClass
from graphparity.fastpath.step_inputs import StepInputs
from graphparity.reference.input_batch import InputBatch


class Phase(Enum):
    """A host decision."""

    SHORT = "short"
    LONG = "long"


class Plan:
    """A plain object that equals itself alone."""

    def __init__(self, **held: object) -> None:
        self.__dict__.update(held)


class Hidden:
    """An object that cannot be looked into."""

    __slots__ = ()


@dataclass
class HostMetadata:
    """One host value."""

    value: Any


KEPT = Hidden()


def longest(batch: InputBatch) -> int:
    """The host's bound on the longest sequence."""
    return int(batch.seq_lens_cpu_upper_bound.max())


def phase(batch: InputBatch) -> Phase:
    """What the host makes of it."""
    return Phase.LONG if longest(batch) > plain.BLOCK_SIZE else Phase.SHORT


class HostBuild(plain.PlainBuild):
    """Returns one host value of the batch."""

    def __init__(self, value_of: Callable[[InputBatch], object]) -> None:
        super().__init__()
        self._value_of = value_of

    def build(self, step: StepInputs) -> Any:
        """The host value, and no device work."""
        return HostMetadata(self._value_of(step.input_batch))


ACCEPTED: dict[str, tuple[Callable[[InputBatch], object], FieldClass]] = {
    "the key's count": (lambda b: b.num_reqs, FieldClass.EXACT),
    "an enum member": (lambda b: Phase.LONG, FieldClass.EXACT),
    "a dtype": (lambda b: b.seq_lens.dtype, FieldClass.IDENTITY),
    "a text": (lambda b: "decode", FieldClass.EXACT),
    "query offsets": (lambda b: b.query_start_loc_np, FieldClass.EXACT),
    "a set": (lambda b: {b.num_reqs}, FieldClass.EXACT),
    "a bound": (longest, FieldClass.BOUND),
    "a bound a request": (lambda b: b.seq_lens_cpu_upper_bound, FieldClass.BOUND),
    "one object": (lambda b: KEPT, FieldClass.IDENTITY),
    "an object like it": (lambda b: Plan(a=1), FieldClass.IDENTITY),
    "a function": (lambda b: longest, FieldClass.IDENTITY),
}
REFUSED: dict[str, Callable[[InputBatch], object]] = {
    "a lower bound": lambda b: -longest(b),
    "request indices": lambda b: b.idx_mapping_np,
    "a decision": lambda b: longest(b) > plain.BLOCK_SIZE,
    "a decision in words": phase,
    "a text": lambda b: f"decode up to {longest(b)}",
    "a set": lambda b: {longest(b)},
    "a value or none": lambda b: 1 if phase(b) is Phase.LONG else None,
    "a list of some length": lambda b: [0] * longest(b),
    "an object or another": lambda b: KEPT if phase(b) is Phase.LONG else Plan(),
    "an attribute": lambda b: Plan(first=int(b.idx_mapping_np[0])),
    "a closure": lambda b: partial(longest, b),
    "a lambda": lambda b: lambda: longest(b),
    "a hidden object": lambda b: Hidden(),
    "a hidden object within": lambda b: Plan(inner=Hidden()),
}


@pytest.mark.parametrize("value", ACCEPTED)
def test_a_host_value_is_accepted(value: str) -> None:
    """With its class."""
    value_of, expected = ACCEPTED[value]
    verdict = judged(HostBuild(value_of))
    assert verdict.recordable
    classes = {field.path: field.field_class for field in verdict.fields}
    assert classes["value"] is expected


def test_a_bound_is_told_from_that_of_the_longest_sequence() -> None:
    """Readers of the longest sequence's length can be given that of their step."""
    bounds = {
        "the longest": longest,
        "a request's": lambda b: b.seq_lens_cpu_upper_bound,
        "one more": lambda b: longest(b) + 1,
    }
    for name, value_of in bounds.items():
        (found,) = judged(HostBuild(value_of)).fields
        assert found.field_class is FieldClass.BOUND
        assert found.is_longest is (name == "the longest")


def test_an_object_is_told_from_one_of_its_type_that_every_build_makes() -> None:
    """The one is handed out again, the other is made anew."""
    kept = Plan(a=1)
    for value_of, is_made_anew in (
        (lambda b: kept, False),
        (lambda b: Plan(a=1), True),
    ):
        found = {field.path: field for field in judged(HostBuild(value_of)).fields}
        assert found["value"].is_made_anew is is_made_anew
        assert not found["value.a"].is_made_anew


@pytest.mark.parametrize("value", REFUSED)
def test_a_frozen_host_value_is_refused(value: str) -> None:
    """With its path and where it is built."""
    refusal = judged(HostBuild(REFUSED[value]), KEYS).refusal
    assert refusal is not None
    assert refusal.check is Check.REPLAY_EQUALS_EAGER
    assert refusal.field.startswith("value")
    assert refusal.location.startswith(f"{__file__}:")
