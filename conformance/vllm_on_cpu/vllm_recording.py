"""Let vLLM's own specialised state record with a recorder of ours.

`DeepseekV41SpecializedDecodeModelState`
(`models/deepseek_v41/nvidia/specialized_decode/runtime`) records into a
`torch.cuda.CUDAGraph`, which needs a GPU. Under `recording_with(recorder)` its
`AttnMetadataCudaGraphs.capture` hands the same build to `recorder` instead, and its
forked build asks `recorder` for streams. Only the recorder differs: the state, its
keys, its padded batches, its forked build, its list of recordable builders and its
replay are vLLM's, unmodified. That list holds Blackwell's builders only; on Hopper vLLM
records nothing and builds eagerly.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from types import SimpleNamespace
from typing import Any
from unittest import mock

from graphparity.fastpath.graph_key import GraphKey
from graphparity.fastpath.recorders.protocol import Recorder, SideStream


class _CaptureStream:
    """What `current_stream()` answers there: it only waits for side streams."""

    def wait_stream(self, other: "_Stream") -> None:
        """Join a side stream."""
        other.side.join()


class _Stream:
    """A `torch.cuda.Stream` that is a side stream of a recorder."""

    def __init__(self, side: SideStream) -> None:
        self.side = side

    def wait_stream(self, other: _CaptureStream) -> None:
        """Fork from the capture stream."""
        del other
        self.side.fork()


@contextmanager
def recording_with(recorder: Recorder) -> Iterator[None]:
    """While active, vLLM's specialised state records with `recorder`.

    Replays need no context: a recorded graph stays with the state.
    """
    from vllm.models.deepseek_v41.nvidia.specialized_decode.runtime import (
        metadata_graphs,
    )

    numbers = count()

    def capture(
        self: Any,
        key: GraphKey,
        attn_groups: Any,
        block_tables: Sequence[Any],
        build_fn: Any,
    ) -> Any:
        """As the original, with `recorder` where it opens a `torch.cuda.graph`."""

        def build() -> Any:
            return self._forked_build(attn_groups, block_tables, build_fn)

        recorder.warm_up(build)
        recorder.synchronize()
        self._graphs[key] = recorder.capture(build)
        return self._graphs[key][1]

    def new_stream() -> _Stream:
        return _Stream(recorder.side_stream(next(numbers)))

    def use(stream: _Stream) -> AbstractContextManager[None]:
        return stream.side.use()

    streams = SimpleNamespace(cuda=SimpleNamespace(Stream=new_stream, stream=use))
    with (
        mock.patch.object(metadata_graphs.AttnMetadataCudaGraphs, "capture", capture),
        mock.patch.object(metadata_graphs, "torch", streams),
        mock.patch.object(metadata_graphs, "current_stream", _CaptureStream),
    ):
        yield
