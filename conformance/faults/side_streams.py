"""K10: work on a side stream is not ordered with the capture or with a replay, and the
memory of a pool is handed out twice.

Concurrency exists on a GPU alone; these faults make one of its outcomes: a branch that
ends a launch late, an operation that runs after its reader, a warm-up that ends while
steps are served, an intermediate that lies over somebody's buffer.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest import mock

import torch

from graphparity.conformance.faults.fault import Kind, Layer, fault
from graphparity.conformance.faults.patches import replaced, while_capturing
from graphparity.conformance.subjects.subject import MeteredGraph, MeteredRecorder
from graphparity.conformance.subjects.torch_builders import TorchSlidingWindowBuilder
from graphparity.fastpath.recorders import EmulatedGraph

FIRST_LINE = inspect.getsourcelines(TorchSlidingWindowBuilder)[1]
"""Of the window's builder, the last class in its file."""


def _is_of_the_window(node: Any) -> bool:
    """Whether a recorded operation is one of the sliding window's build."""
    path, _, line = node.parameters.location.rpartition(":")
    return path.endswith("torch_builders.py") and int(line) > FIRST_LINE


@fault(
    Kind.K10,
    "local-inference-lab/vllm#617",
    "warp#1469",
    check="decode steps",
    expected=r"builders\.sliding_window\.decode_swa_lens\[",
    layer=Layer.EMULATED,
)
def branch_not_joined() -> AbstractContextManager[Any]:
    """A launch ends before the branch that builds the window, which runs into the next
    one.
    """
    left: list[Callable[[], object]] = []

    def replay(sound: Any, graph: Any) -> None:
        while left:
            left.pop(0)()
        whole = graph._runs
        left.extend(node.run for node in graph.nodes if _is_of_the_window(node))
        main = [node.run for node in graph.nodes if not _is_of_the_window(node)]
        with mock.patch.object(graph, "_runs", main):
            sound(graph)
        assert graph._runs is whole

    return replaced(EmulatedGraph, "replay", replay)


@fault(
    Kind.K10,
    "sglang#32467",
    check="decode steps",
    expected=r"builders\.sliding_window\.decode_swa_indices\[",
    layer=Layer.EMULATED,
)
def validity_written_after_it_is_read() -> AbstractContextManager[Any]:
    """The operation that marks valid tokens races with those that plan from the marks,
    and loses.
    """

    def replay(sound: Any, graph: Any) -> None:
        late = [node.run for node in graph.nodes if "aten.ge" in node.describe()]
        rest = [node.run for node in graph.nodes if "aten.ge" not in node.describe()]
        with mock.patch.object(graph, "_runs", [*rest, *late]):
            sound(graph)

    return replaced(EmulatedGraph, "replay", replay)


@fault(
    Kind.K10,
    "local-inference-lab/vllm#617",
    "sglang#33795",
    check="decode steps",
    expected=r"builders\.sliding_window\.decode_swa_lens\[",
    layer=Layer.STATE,
)
@contextmanager
def warm_up_still_running_when_a_step_is_served() -> Iterator[None]:
    """Nobody waits for the last warm-up, which ends after the first replay."""
    running: list[Callable[[], object]] = []

    def warm_up(sound: Any, self: Any, build: Any) -> None:
        running[:] = [build]

    def replay(sound: Any, graph: Any) -> None:
        sound(graph)
        while running:
            running.pop()()

    with (
        replaced(MeteredRecorder, "warm_up", warm_up),
        replaced(MeteredGraph, "replay", replay),
    ):
        yield


@fault(
    Kind.K10,
    "sglang#34286",
    "cubecl#1612",
    check="decode steps",
    expected=r"input_buffers\.input_ids: written, but should be left as it was",
)
def pool_memory_handed_out_twice() -> AbstractContextManager[Any]:
    """An intermediate of the recorded build lies over the token ids, which the forward
    is yet to read.
    """

    def build(sound: Any, self: Any, batch: Any, *rest: Any) -> Any:
        torch.add(batch.seq_lens[:1], 1, out=batch.input_ids[:1])
        return sound(self, batch, *rest)

    return while_capturing(TorchSlidingWindowBuilder, "build", build)
