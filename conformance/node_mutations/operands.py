"""The operands that a recorded node binds, by name, and nodes with another operand.

A node's ``run`` is a ``partial`` that holds all it will be given: tensors, scalars,
lists of those, and of a kernel its launch grid. What the operation is not given (the
operation itself, a kernel's executor, a launch option) is no operand.
"""

import copy
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from torch._ops import OpOverload

from graphparity.fastpath.recorders import Node

Run = partial[Any]
Path = tuple[int | str, ...]
"""Where an operand lies in (args, kwargs) of a ``run``."""


class Operand(NamedTuple):
    """One scalar or tensor that a node was given."""

    name: str
    path: Path
    value: Any


GRID: Path = ("grid",)
"""Not a path into the arguments: the grid is the executor's."""


def operands_of(node: Node) -> list[Operand]:
    """The scalars and tensors of a node, nested ones each by itself."""
    bound = _bound(node)
    return [leaf for name, path, value in bound for leaf in _leaves(name, path, value)]


def _bound(node: Node) -> list[tuple[str, Path, Any]]:
    run = node.run
    if isinstance(run.func, OpOverload):
        names = [argument.name for argument in run.func._schema.arguments]
        return _named(names, (0,), run.args) + _keywords((1,), run.keywords)
    first, *rest = run.args
    if node.kind != "kernel":  # the operation runs, and its results are copied
        names = [argument.name for argument in first._schema.arguments]
        args, kwargs, results = rest
        found = _named(names, (0, 1), args) + _keywords((0, 2), kwargs)
        return [*found, ("result", (0, 3), results)]
    found = _named(["", *first.arg_names], (0,), run.args)
    found += _keywords((1,), run.keywords)
    taken = [it for it in found if it[0] in first.arg_names]  # no launch options
    return [*taken, ("grid", GRID, tuple(first.grid))]


def _named(
    names: Sequence[str], path: Path, values: Sequence[Any]
) -> list[tuple[str, Path, Any]]:
    return [(names[i], (*path, i), value) for i, value in enumerate(values)]


def _keywords(path: Path, values: dict[str, Any]) -> list[tuple[str, Path, Any]]:
    return [(name, (*path, name), value) for name, value in values.items()]


def with_operand(node: Node, path: Path, value: object) -> Run:
    """``node``'s run with ``value`` where ``operands_of`` found an operand."""
    run = node.run
    if path[:1] == GRID:
        executor = copy.copy(run.args[0])
        executor.grid = _replaced(tuple(executor.grid), path[1:], value)
        return partial(run.func, executor, *run.args[1:], **run.keywords)
    args, keywords = _replaced((run.args, run.keywords), path, value)
    return partial(run.func, *args, **keywords)


def _leaves(name: str, path: Path, value: Any) -> Iterator[Operand]:
    if isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from _leaves(f"{name}[{i}]", (*path, i), item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(f"{name}.{key}", (*path, key), item)
    else:
        yield Operand(name, path, value)


def _replaced(value: Any, path: Path, new: object) -> Any:
    """A copy of nested lists, tuples and dictionaries with ``new`` at ``path``."""
    if not path:
        return new
    first, *rest = path
    if isinstance(value, dict):
        return {**value, first: _replaced(value[first], tuple(rest), new)}
    items = list(value)
    assert isinstance(first, int)
    items[first] = _replaced(items[first], tuple(rest), new)
    if hasattr(value, "_fields"):
        return type(value)(*items)
    return type(value)(items)
