"""Elements that a build leaves undefined."""

import torch

from graphparity.fastpath.proving.fresh_memory import define_as


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
