"""A kept launch writes what a run would write; whatever a run could read tells launches
apart.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from graphparity.conformance.vllm_on_cpu.launch_memo import LaunchMemo

Change = Callable[[SimpleNamespace, dict[str, Any]], object]


def kernel(source: Any, target: Any, factor: Any, block: int = 4) -> None:
    """The body that the interpreter would run."""
    target[:block] += source[:block] * factor


def launch(executor: Any, *args: Any, **kwargs: Any) -> None:
    """Stands for the interpreter's launch."""
    executor.fn(*args, **{name: it for name, it in kwargs.items() if name != "warps"})


def an_executor() -> SimpleNamespace:
    """What Triton makes of a kernel and a grid."""
    return SimpleNamespace(fn=kernel, grid=(2,), pre_run_hooks=[])


def some_arguments() -> dict[str, Any]:
    """Two views of buffers, and a scalar."""
    return {
        "source": torch.arange(6, dtype=torch.int32)[1:],
        "target": torch.tensor([5, 6, 7, 8], dtype=torch.int32),
        "factor": 3,
    }


def other_grid(executor: SimpleNamespace, _: dict[str, Any]) -> None:
    """A larger grid."""
    executor.grid = (3,)


def other_kernel(executor: SimpleNamespace, _: dict[str, Any]) -> None:
    """Another function of the same parameters."""
    executor.fn = lambda source, target, factor, block=4: target.zero_()


DIFFERENT: dict[str, Change] = {
    "grid": other_grid,
    "kernel": other_kernel,
    "scalar": lambda _, arguments: arguments.update(factor=4),
    "constexpr": lambda _, arguments: arguments.update(block=1),
    "a value read": lambda _, arguments: arguments["source"].add_(1),
    "a value beside the view": lambda _, arguments: (
        arguments["source"].as_strided((1,), (1,), 0).add_(1)
    ),
    "a value written": lambda _, arguments: arguments["target"].add_(1),
    "offset": lambda _, arguments: arguments.update(
        source=arguments["source"].as_strided((5,), (1,), 0)
    ),
    "stride": lambda _, arguments: arguments.update(
        source=torch.arange(6, dtype=torch.int32)[1:].as_strided((1, 4), (1, 1))[0]
    ),
    "aliases": lambda _, arguments: arguments.update(source=arguments["target"]),
}


def test_an_equal_launch_is_not_run_and_writes_the_same() -> None:
    """Also into buffers that lie elsewhere."""
    memo, runs = LaunchMemo(launch), [some_arguments() for _ in range(3)]
    launch(an_executor(), **runs[0])
    for arguments in runs[1:]:
        memo(an_executor(), warps=4, **arguments)
        assert torch.equal(arguments["target"], runs[0]["target"])
    assert (memo.num_run, memo.num_kept) == (1, 1)


@pytest.mark.parametrize("change", DIFFERENT.values(), ids=DIFFERENT.keys())
def test_a_launch_that_differs_in_anything_runs(change: Change) -> None:
    """And writes what it would have written without the memo."""
    memo = LaunchMemo(launch)
    memo(an_executor(), **some_arguments())
    executor, actual = an_executor(), some_arguments()
    change(executor, actual)
    expected = some_arguments()
    change(executor, expected)
    memo(executor, **actual)
    launch(executor, **expected)
    assert torch.equal(actual["target"], expected["target"])
    assert (memo.num_run, memo.num_kept) == (2, 0)


def test_a_grid_is_that_of_the_launch() -> None:
    """A function of the arguments, as the kernel's author wrote it."""
    memo = LaunchMemo(launch)
    for block in (4, 4, 2):
        executor = an_executor()
        executor.grid = lambda arguments: (arguments["block"],)
        memo(executor, **some_arguments(), block=block)
    assert (memo.num_run, memo.num_kept) == (2, 1)


def test_memory_that_no_argument_leads_to_is_not_trusted() -> None:
    """A kernel that makes a pointer of an integer runs every time."""

    def launch_through_a_pointer(executor: Any, *args: Any, **kwargs: Any) -> None:
        memo.has_made_pointer = True
        launch(executor, *args, **kwargs)

    memo = LaunchMemo(launch_through_a_pointer)
    for _ in range(2):
        memo(an_executor(), **some_arguments())
    assert (memo.num_run, memo.num_kept) == (2, 0)


@pytest.mark.parametrize("unknown", [object(), [1], (1, object())])
def test_an_argument_of_unknown_kind_is_not_trusted(unknown: object) -> None:
    """Nothing of such a launch is kept; it runs."""
    calls: list[object] = []
    memo = LaunchMemo(lambda executor, **kwargs: calls.append(kwargs["factor"]))
    for _ in range(2):
        memo(an_executor(), **some_arguments() | {"factor": unknown})
    assert calls == [unknown, unknown]


def test_a_launch_that_failed_is_not_kept() -> None:
    """The next one runs, and fails as well."""

    def fail(executor: Any, **kwargs: Any) -> None:
        raise RuntimeError("out of bounds")

    memo = LaunchMemo(fail)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="out of bounds"):
            memo(an_executor(), **some_arguments())
    assert memo.num_run == 2


def test_the_least_recently_used_is_dropped() -> None:
    """Room for two launches, each of which changes four bytes at four offsets."""
    memo = LaunchMemo(launch, max_kept_bytes=2 * 4 * (1 + 8))
    for factor in (1, 2, 1, 3, 1, 2):
        arguments = some_arguments() | {"factor": factor}
        memo(an_executor(), **arguments)
        expected = [5 + factor, 6 + 2 * factor, 7 + 3 * factor, 8 + 4 * factor]
        assert arguments["target"].tolist() == expected
    assert (memo.num_run, memo.num_kept) == (4, 2)
