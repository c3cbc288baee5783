"""The recorder of a plugged-in state: made anew for every capture of the runner.

vLLM profiles graph memory before it captures for good; what was recorded then is
given up with its recorder, whose memory the profile has counted.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from graphparity.fastpath.recorders.cuda import CudaRecorder, require_cuda
from graphparity.fastpath.recorders.protocol import (
    RecordedGraph,
    Recorder,
    ReplayTimes,
    SideStream,
)
from graphparity.fastpath.vllm_plugin.first_allocations import FirstAllocationsRefused

T = TypeVar("T")

RecorderFactory = Callable[[Any], Recorder]
"""Makes a recorder for a runner."""


def cuda_recorder(runner: Any) -> Recorder:
    """The recorder of an engine on a GPU."""
    del runner
    return CudaRecorder()


def why_no_cuda_recorder() -> str:
    """Why this process cannot record CUDA graphs; "" if it can."""
    try:
        require_cuda()
    except RuntimeError as error:
        return str(error)
    return ""


class CaptureRecorder:
    """Records through the recorder of the runner's capture in progress.

    Args:
        make_recorder: makes that recorder.
    """

    def __init__(self, make_recorder: RecorderFactory) -> None:
        self._make_recorder = make_recorder
        self._recorder: Recorder | None = None

    @property
    def name(self) -> str:
        """The recorder's name; "" before the first capture."""
        return "" if self._recorder is None else self._recorder.name

    def make_recorder(self, runner: Any) -> Recorder:
        """A recorder of a runner's builds."""
        return FirstAllocationsRefused(self._make_recorder(runner), runner)

    def begin(self, runner: Any) -> None:
        """The runner captures from now on."""
        self._recorder = self.make_recorder(runner)

    def drop(self) -> None:
        """Give up the recorder, and with it its hold on its pool."""
        self._recorder = None

    def warm_up(self, build: Callable[[], object]) -> None:
        """As ``Recorder.warm_up``."""
        self._capturing.warm_up(build)

    def synchronize(self) -> None:
        """As ``Recorder.synchronize``."""
        self._capturing.synchronize()

    def capture(self, build: Callable[[], T]) -> tuple[RecordedGraph, T]:
        """As ``Recorder.capture``."""
        return self._capturing.capture(build)

    def side_stream(self, index: int) -> SideStream:
        """As ``Recorder.side_stream``."""
        return self._capturing.side_stream(index)

    def replay_times(self, graph: RecordedGraph) -> ReplayTimes | None:
        """As ``Recorder.replay_times``."""
        return self._capturing.replay_times(graph)

    @property
    def _capturing(self) -> Recorder:
        assert self._recorder is not None, "recorded outside of the runner's capture"
        return self._recorder
