"""Elements that a build leaves undefined."""

import pytest
import torch

from graphparity.fastpath.proving import fresh_memory
from graphparity.fastpath.proving.fresh_memory import (
    FILLS,
    build_over_fills,
    define_as,
)


def test_undefined_elements_take_the_replayed_value() -> None:
    """Only where both eager builds hold what fresh memory held."""
    first = torch.tensor([7, 1, 0, 3], dtype=torch.int32)
    second = torch.tensor([7, 1, -1, 3], dtype=torch.int32)
    replayed = torch.tensor([7, 9, 5, 3], dtype=torch.int32)
    assert define_as(replayed, first, second).tolist() == [7, 1, 5, 3]


def test_defined_elements_are_never_taken_over() -> None:
    """A replay that differs in a defined element still differs."""
    eager = torch.tensor([1, 2])
    assert torch.equal(define_as(torch.tensor([1, 3]), eager, eager.clone()), eager)


def test_builds_that_differ_otherwise_are_not_undefined() -> None:
    """A builder that counts its builds leaves other values, and is caught."""
    first, second = torch.tensor([4, 0]), torch.tensor([5, 1])
    assert torch.equal(define_as(torch.tensor([9, 9]), first, second), first)


def test_another_shape_is_left_to_the_comparison() -> None:
    """What is laid out otherwise cannot be matched element by element."""
    first, second = torch.tensor([0, 0]), torch.tensor([0, -1])
    assert torch.equal(define_as(torch.tensor([1]), first, second), first)


def test_every_kind_of_element_can_be_undefined() -> None:
    """Bytes decide, whatever the type."""
    for dtype in (torch.uint8, torch.int64, torch.float32):
        first = torch.zeros(2, dtype=torch.uint8).repeat(8).view(dtype)
        second = torch.full((16,), 0xFF, dtype=torch.uint8).view(dtype)
        replayed = torch.ones_like(first)
        assert torch.equal(define_as(replayed, first, second), replayed)


def test_a_gpu_is_built_on_over_each_fill(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every GPU's fresh memory is filled before each of the two builds."""
    filled: list[tuple[torch.device, int]] = []
    monkeypatch.setattr(
        fresh_memory, "_fill_fresh_memory", lambda *fill: filled.append(fill)
    )
    gpu = torch.device("cuda:0")
    built = build_over_fills([torch.device("cpu"), gpu], lambda: list(filled))
    assert built == ([(gpu, FILLS[0])], [(gpu, FILLS[0]), (gpu, FILLS[1])])


def test_without_a_gpu_one_build_is_both() -> None:
    """Nothing is left undefined there, and nothing is built in vain."""
    first, second = build_over_fills([torch.device("cpu")], list[int])
    assert first is second
