"""Images are copies, restoring is exact, and poison is wrong but harmless."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphparity.conformance.memory import (
    changed_paths,
    image_of,
    poison,
    poison_against,
    restore,
)


def memory_of(values: list[int]) -> dict[str, torch.Tensor]:
    """Buffers of every dtype that a subject has, and one of two dimensions."""
    return {
        "int32": torch.tensor(values, dtype=torch.int32),
        "int64": torch.tensor(values, dtype=torch.int64),
        "bool": torch.tensor([value > 0 for value in values]),
        "rows": torch.tensor([values, values[::-1]]),
    }


contents = st.lists(st.integers(-2, 2), min_size=1, max_size=6)
"""Few values, so that some equal the poison by chance. Shrinks to one 0."""


@given(values=contents)
@settings(max_examples=50, deadline=None)
def test_restore_undoes_every_write(values: list[int]) -> None:
    """Contents return; the buffers stay the same tensors."""
    memory = memory_of(values)
    tensors = dict(memory)
    image = image_of(memory)
    for tensor in memory.values():
        tensor.copy_(tensor == 0)
    restore(memory, image)
    assert changed_paths(image, image_of(memory)) == frozenset()
    assert all(memory[path] is tensor for path, tensor in tensors.items())
    assert memory["int64"].tolist() == values


def test_image_is_a_copy() -> None:
    """Later writes do not reach it."""
    memory = memory_of([1, 2])
    image = image_of(memory)
    memory["int32"][0] = 7
    assert image["int32"].tolist() == [1, 2]


@pytest.mark.parametrize("path", ["int32", "int64", "bool", "rows"])
def test_changed_paths_names_exactly_what_changed(path: str) -> None:
    """One element of one buffer is enough."""
    memory = memory_of([1, 2])
    before = image_of(memory)
    memory[path].view(-1)[-1] = 0
    assert changed_paths(before, image_of(memory)) == {path}


@given(values=contents, seed=st.integers(0, 2**16), num_rows=st.integers(1, 9))
@settings(max_examples=50, deadline=None)
def test_poison_is_a_row_index_in_range(
    values: list[int], seed: int, num_rows: int
) -> None:
    """A kernel that takes it for a row reads a wrong row, not a stranger's memory."""
    memory = memory_of(values)
    poison(memory, memory, seed, num_rows)
    for path in ("int32", "int64", "rows"):
        assert int(memory[path].min()) >= 0
        assert int(memory[path].max()) < num_rows
    assert memory["bool"].dtype is torch.bool


def test_poison_follows_from_its_seed() -> None:
    """A failing step is repeated with the same poison; another seed has another."""
    first, second, third = (memory_of([0] * 6) for _ in range(3))
    poison(first, first, 5, 8)
    poison(second, second, 5, 8)
    poison(third, third, 6, 8)
    assert changed_paths(first, second) == frozenset()
    assert changed_paths(first, third) >= {"int32", "int64", "rows"}


@given(values=contents)
@settings(max_examples=50, deadline=None)
def test_poison_against_leaves_no_element_as_in_the_image(values: list[int]) -> None:
    """A missing write of any single element shows."""
    memory = memory_of(values)
    image = image_of(memory)
    poison_against(memory, memory, image)
    for path, tensor in memory.items():
        assert bool((tensor != image[path]).all()), path
        assert bool(((tensor == 0) | (tensor == 1)).all()), path


def poisoned(memory: dict[str, torch.Tensor]) -> None:
    """Random poison of two buffers."""
    poison(memory, ["int32", "bool"], 3, 8)


def poisoned_against(memory: dict[str, torch.Tensor]) -> None:
    """Opposite poison of two buffers."""
    poison_against(memory, ["int32", "bool"], image_of(memory))


@pytest.mark.parametrize("fill", [poisoned, poisoned_against])
def test_only_named_buffers_are_poisoned(
    fill: Callable[[dict[str, torch.Tensor]], None],
) -> None:
    """Inputs keep what the runner staged."""
    memory = memory_of([1, 2, -1, 5])
    before = image_of(memory)
    fill(memory)
    assert changed_paths(before, image_of(memory)) == {"int32", "bool"}
