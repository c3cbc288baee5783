"""The comparer reports every kind of difference, and nothing else."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from graphparity.conformance import comparer
from graphparity.conformance.comparer import (
    BOUND_FIELDS,
    Difference,
    FieldClass,
    leaves,
)


def int32(*values: int) -> torch.Tensor:
    """A tensor of its own."""
    return torch.tensor(values, dtype=torch.int32)


@dataclass
class Inner:
    """Nested metadata."""

    lens: torch.Tensor = field(default_factory=lambda: int32(1, 2, 3))
    num_reqs: int = 3


@dataclass
class Metadata:
    """Metadata of one layer, of every kind of value."""

    slots: torch.Tensor = field(default_factory=lambda: int32(4, 5, 6))
    inner: Inner = field(default_factory=Inner)
    rows: list[Any] = field(default_factory=lambda: [int32(7), {"left": int32(8, 9)}])
    max_seq_len: int = 10
    num_tokens: int = 3
    causal: bool = True
    scale: float = 0.5
    kind: str = "decode"
    scheduler: object = None


def found(
    actual: object, expected: object, stand_in_fields: tuple[str, ...] = ()
) -> list[Difference]:
    """The differences of two builds."""
    return comparer.differences(
        comparer.leaves(actual),
        comparer.leaves(expected),
        stand_in_fields=stand_in_fields,
    )


def changed(**values: object) -> Metadata:
    """Sound metadata but for the given fields, which may be of a wrong kind."""
    metadata = Metadata()
    for name, value in values.items():
        setattr(metadata, name, value)
    return metadata


SOUND = Metadata()
FIRST_OF_MANY = "[(0,), (1,), (2,), (3,), (4,), (5,) and 2 more]"

DIFFERENCES = {
    "slots=[4, 0, 7]": (
        changed(slots=int32(4, 0, 7)),
        Difference("layer.slots[(1,), (2,)]", "[0, 7]", "[5, 6]"),
    ),
    "slots.shape=(2,)": (
        changed(slots=int32(4, 5)),
        Difference(
            "layer.slots", "torch.int32 of shape (2,)", "torch.int32 of shape (3,)"
        ),
    ),
    "slots.dtype=int64": (
        changed(slots=SOUND.slots.long()),
        Difference(
            "layer.slots", "torch.int64 of shape (3,)", "torch.int32 of shape (3,)"
        ),
    ),
    "slots=6": (
        changed(slots=6),
        Difference("layer.slots", "6", "a tensor"),
    ),
    "num_tokens=tensor": (
        changed(num_tokens=int32(3)),
        Difference("layer.num_tokens", "a tensor", "3"),
    ),
    "num_tokens=4": (
        changed(num_tokens=4),
        Difference("layer.num_tokens", "4", "3"),
    ),
    "num_tokens=None": (
        changed(num_tokens=None),
        Difference("layer.num_tokens", "None", "3"),
    ),
    "causal=1": (changed(causal=1), Difference("layer.causal", "1", "True")),
    "scale=0.25": (
        changed(scale=0.25),
        Difference("layer.scale", "0.25", "0.5"),
    ),
    "kind='mixed'": (
        changed(kind="mixed"),
        Difference("layer.kind", "'mixed'", "'decode'"),
    ),
    "max_seq_len=9": (
        changed(max_seq_len=9),
        Difference("layer.max_seq_len", "9", "10"),
    ),
    "scheduler=ndarray": (
        changed(scheduler=np.zeros(2)),
        Difference("layer.scheduler", "a tensor", "None"),
    ),
    "inner.lens=[1, 2, 4]": (
        changed(inner=Inner(lens=int32(1, 2, 4))),
        Difference("layer.inner.lens[(2,)]", "[4]", "[3]"),
    ),
    "inner.num_reqs=2": (
        changed(inner=Inner(num_reqs=2)),
        Difference("layer.inner.num_reqs", "2", "3"),
    ),
    "rows[0]=[0]": (
        changed(rows=[int32(0), SOUND.rows[1]]),
        Difference("layer.rows.[0][(0,)]", "[0]", "[7]"),
    ),
    "rows[1]['left']=[8, 0]": (
        changed(rows=[SOUND.rows[0], {"left": int32(8, 0)}]),
        Difference("layer.rows.[1].left[(1,)]", "[0]", "[9]"),
    ),
    "rows[2]=1": (
        changed(rows=[*SOUND.rows, 1]),
        Difference("layer.rows.[2]", "present", "absent"),
    ),
}


@pytest.mark.parametrize(
    ("actual", "difference"), DIFFERENCES.values(), ids=DIFFERENCES
)
def test_one_difference_is_reported_with_path_actual_and_expected(
    actual: Metadata, difference: Difference
) -> None:
    """Exactly that one, at the path of the field."""
    assert found({"layer": actual}, {"layer": SOUND}) == [difference]


def test_equal_builds_of_separate_tensors_have_no_difference() -> None:
    """Values alone are compared; places are another question."""
    assert found({"layer": Metadata()}, {"layer": Metadata()}) == []


@pytest.mark.parametrize("absent_side", ["actual", "expected"])
def test_missing_path_is_reported_on_either_side(absent_side: str) -> None:
    """A layer or a field that only one build has."""
    both, one = {"a": 1, "b": 2}, {"a": 1}
    if absent_side == "actual":
        assert found(one, both) == [Difference("b", "absent", "present")]
    else:
        assert found(both, one) == [Difference("b", "present", "absent")]


def test_all_differences_are_listed_at_once() -> None:
    """A fault is seen whole, not by its first symptom."""
    actual = {
        "layer": changed(slots=int32(0, 5, 6), num_tokens=1, max_seq_len=1),
        "extra": 1,
    }
    paths = [difference.path for difference in found(actual, {"layer": SOUND})]
    assert sorted(paths) == [
        "extra",
        "layer.max_seq_len",
        "layer.num_tokens",
        "layer.slots[(0,)]",
    ]


def test_many_wrong_elements_are_shown_up_to_a_limit() -> None:
    """The first six, and how many more there are."""
    (difference,) = found({"x": int32(*[1] * 8)}, {"x": int32(*[0] * 8)})
    assert difference.path == f"x{FIRST_OF_MANY}"
    assert difference.actual == str([1] * 6)


def test_scalar_tensor_is_compared_by_value() -> None:
    """A tensor without dimensions has one element to differ in."""
    assert found({"x": torch.tensor(3)}, {"x": torch.tensor(3)}) == []
    (difference,) = found({"x": torch.tensor(2)}, {"x": torch.tensor(3)})
    assert (difference.actual, difference.expected) == ("[2]", "[3]")


@pytest.mark.parametrize("name", sorted(BOUND_FIELDS))
@pytest.mark.parametrize(
    ("actual", "holds"), [(9, False), (10, True), (11, False), (64, True), (65, False)]
)
def test_bound_may_be_frozen_at_its_worst_case_alone(
    name: str, actual: int, holds: bool
) -> None:
    """At any depth; the field's own name decides."""
    differences = comparer.differences(
        leaves({"a": {name: actual}}), leaves({"a": {name: 10}}), worst_case=64
    )
    assert (differences == []) is holds


@pytest.mark.parametrize("name", sorted(BOUND_FIELDS))
def test_bound_is_exact_where_nothing_is_replayed(name: str) -> None:
    """Without a worst case, a bound is a field like any other."""
    assert found({"a": {name: 64}}, {"a": {name: 10}}) != []


@pytest.mark.parametrize("actual", [9, 11])
def test_bound_of_another_name_is_exact(actual: int) -> None:
    """``max_seq_len`` in a path is not ``max_seq_len`` at its end."""
    assert found({"max_seq_len": {"x": actual}}, {"max_seq_len": {"x": 10}}) != []


def test_stand_in_fields_are_not_compared() -> None:
    """By the field's own name, whatever the value's kind."""
    actual = changed(slots=int32(0), kind="other")
    expected = {"layer": SOUND}
    assert found({"layer": actual}, expected, ("slots", "kind")) == []
    assert len(found({"layer": actual}, expected, ("layer",))) == 2


def test_absent_stand_in_field_is_still_reported() -> None:
    """A stand-in replaces a value, not the field."""
    actual, expected = {"other": 1}, {"other": 1, "slots": 1}
    assert found(actual, expected, ("slots",)) == [
        Difference("slots", "absent", "present")
    ]


def test_opaque_objects_are_compared_by_type() -> None:
    """Nothing is known of their values."""
    assert found({"x": object()}, {"x": object()}) == []
    assert found({"x": iter(())}, {"x": object()}) == [
        Difference("x", "'a tuple_iterator'", "'a object'")
    ]


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        (np.arange(3), np.arange(1, 4)),
        (np.int32(1), np.int32(7)),
        (b"a", b"b"),
        (torch.int32, torch.float16),
        (FieldClass.EXACT, FieldClass.BOUND),
        ({1}, {2}),
        (SimpleNamespace(x=1), SimpleNamespace(x=2)),
        (SimpleNamespace(x=int32(1)), SimpleNamespace(x=int32(2))),
    ],
    ids=repr,
)
def test_values_of_every_kind_are_compared(actual: object, expected: object) -> None:
    """Also inside an object that is no dataclass."""
    assert found({"x": actual}, {"x": actual}) == []
    assert len(found({"x": actual}, {"x": expected})) == 1


def test_nan_equals_nan() -> None:
    """In tensors and as a number; a NaN and a number still differ."""
    nan = float("nan")
    assert found({"x": torch.tensor([nan])}, {"x": torch.tensor([nan])}) == []
    assert found({"x": nan}, {"x": nan}) == []
    assert len(found({"x": torch.tensor([nan])}, {"x": torch.tensor([1.0])})) == 1


def test_leaves_are_copies() -> None:
    """The next build overwrites the buffer, not what was compared."""
    tensor = int32(1, 2)
    copied = comparer.leaves({"x": tensor})["x"]
    tensor.zero_()
    assert copied.value.tolist() == [1, 2]


BUFFER = torch.arange(8, dtype=torch.int32)
MOVES = {
    "buffer[1:3]": BUFFER[1:3],
    "buffer[0:4:2]": BUFFER[0:4:2],
    "buffer[0:3]": BUFFER[0:3],
    "buffer[0:2].clone()": BUFFER[0:2].clone(),
}


@pytest.mark.parametrize("actual", MOVES.values(), ids=MOVES)
def test_moved_tensor_is_reported_with_both_places(actual: torch.Tensor) -> None:
    """Another address, stride or shape, whatever the values."""
    moves = comparer.moved(
        comparer.leaves({"x": actual}), comparer.leaves({"x": BUFFER[0:2]})
    )
    assert list(moves) == ["x"]
    assert str(actual.data_ptr()) in moves["x"].actual
    assert str(BUFFER.data_ptr()) in moves["x"].expected


def test_tensor_in_its_place_is_not_moved() -> None:
    """Another view of the same elements, and host values, have not moved."""
    actual = comparer.leaves({"x": BUFFER[0:2], "n": 1})
    expected = comparer.leaves({"x": BUFFER[:2], "n": 2})
    assert comparer.moved(actual, expected) == {}


def test_tensor_without_elements_lies_nowhere() -> None:
    """As a split leaves them for the prefills of a decode step; its shape counts."""
    base = torch.zeros(4)
    actual, expected = (
        comparer.leaves({"x": base[4:]}),
        comparer.leaves({"x": base[:0]}),
    )
    assert not actual["x"].is_device
    assert comparer.moved(expected, actual) == {}
    wider = comparer.leaves({"x": torch.zeros(0, 2)})
    assert len(comparer.differences(actual, wider)) == 1


def test_difference_reads_as_one_sentence() -> None:
    """*path: actual, but should be expected*."""
    assert str(Difference("a.b", "1", "2")) == "a.b: 1, but should be 2"
