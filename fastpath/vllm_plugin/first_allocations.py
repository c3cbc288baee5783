"""No builder allocates its own memory inside a capture.

A builder may allocate what it keeps in its first build, which every capture's warm-up
is. What it allocates inside a capture lies in the graph's memory, is gone with the
graph, and holds nothing: a capture executes no fill. A later eager build would take it
for what a first one made. So such a capture is refused by the member's name, and the
builders are left with the members that they had, as after any refusal.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch

from graphparity.fastpath.builder_memory import builder_memory
from graphparity.fastpath.group_build import source_of
from graphparity.fastpath.recorders.protocol import (
    CaptureError,
    RecordedGraph,
    Recorder,
    ReplayTimes,
    SideStream,
)

T = TypeVar("T")


class FirstAllocationsRefused:
    """A recorder whose captures leave a runner's builders the memory that they own.

    Args:
        recorder: records.
        runner: whose builders build.
    """

    def __init__(self, recorder: Recorder, runner: Any) -> None:
        self._recorder, self._runner = recorder, runner

    @property
    def name(self) -> str:
        """The recorder's."""
        return self._recorder.name

    def warm_up(self, build: Callable[[], object]) -> None:
        """As ``Recorder.warm_up``: what a builder allocates here persists."""
        self._recorder.warm_up(build)

    def synchronize(self) -> None:
        """As ``Recorder.synchronize``."""
        self._recorder.synchronize()

    def capture(self, build: Callable[[], T]) -> tuple[RecordedGraph, T]:
        """As ``Recorder.capture``.

        Raises:
            CaptureError: also if a builder kept memory that the capture allocated.
        """
        builders = tuple(_builders(self._runner))
        members = [dict(vars(builder)) for builder in builders]
        before = {path: it.data_ptr() for path, it in self._owned().items()}
        try:
            graph, built = self._recorder.capture(build)
            kept = self._kept(before, graph)
            if kept:
                graph.release()
                raise _first_allocation(kept, builders)
        except CaptureError:
            for builder, had in zip(builders, members, strict=True):
                vars(builder).clear()
                vars(builder).update(had)
            raise
        return graph, built

    def side_stream(self, index: int) -> SideStream:
        """As ``Recorder.side_stream``."""
        return self._recorder.side_stream(index)

    def replay_times(self, graph: RecordedGraph) -> ReplayTimes | None:
        """As ``Recorder.replay_times``."""
        return self._recorder.replay_times(graph)

    def _owned(self) -> dict[str, torch.Tensor]:
        return builder_memory(self._runner.attn_groups, self._runner.device)

    def _kept(self, before: dict[str, int], graph: RecordedGraph) -> list[str]:
        """The paths of tensors that a builder did not have, in the graph's memory,
        which is asked for only if there are new ones: listing it is slow on a GPU.
        """
        places = {path: it.data_ptr() for path, it in self._owned().items()}
        new = [path for path, place in places.items() if before.get(path) != place]
        pool = graph.pool_spans() if new else ()
        return [
            path
            for path in new
            if any(first <= places[path] < end for first, end in pool)
        ]


def _builders(runner: Any) -> Iterator[Any]:
    for groups in runner.attn_groups:
        for group in groups:
            yield group.get_metadata_builder()


def _first_allocation(kept: list[str], builders: Sequence[Any]) -> CaptureError:
    return CaptureError(
        operation=", ".join(kept),
        reason="the builder allocates it for the first time",
        location=source_of(type(builders[0]).build),
        remedy="allocate it in the builder's constructor, or in any first build",
    )
