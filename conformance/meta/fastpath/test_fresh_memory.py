"""Elements that a build leaves undefined."""

import torch

from graphparity.fastpath.proving.fresh_memory import define_as


def test_undefined_elements_take_the_replayed_value() -> None:
    """Only where two eager builds differ; elsewhere eager's value stands."""
    first, second = torch.tensor([7, 1, 0, 3]), torch.tensor([7, 1, 255, 3])
    replayed = torch.tensor([7, 9, 5, 3])
    defined = define_as(replayed, first, second)
    assert defined.tolist() == [7, 1, 5, 3]


def test_defined_elements_are_never_taken_over() -> None:
    """A replay that differs in a defined element still differs."""
    eager = torch.tensor([1, 2])
    replayed = torch.tensor([1, 3])
    assert torch.equal(define_as(replayed, eager, eager.clone()), eager)


def test_another_shape_is_left_to_the_comparison() -> None:
    """What is laid out otherwise cannot be matched element by element."""
    first, second = torch.tensor([1, 2]), torch.tensor([1, 3])
    assert torch.equal(define_as(torch.tensor([1]), first, second), first)
