"""Let vLLM's own specialised state record with a recorder of ours.

`DeepseekV41SpecializedDecodeModelState`
(`models/deepseek_v41/nvidia/specialized_decode/runtime`) records into a
`torch.cuda.CUDAGraph`, which needs a GPU. Under `recording_with(recorder)` its
`AttnMetadataCudaGraphs.capture` hands the same build to `recorder` instead. Only
the recorder differs: the state, its keys, its padded batches, its forked build,
its list of recordable builders and its replay are vLLM's, unmodified. That list
holds Blackwell's builders only; on Hopper vLLM records nothing and builds eagerly.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from graphparity.fastpath.graph_key import GraphKey
from graphparity.fastpath.recorders.protocol import Recorder


@contextmanager
def recording_with(recorder: Recorder) -> Iterator[None]:
    """While active, vLLM's specialised state records with `recorder`.

    Replays need no context: a recorded graph stays with the state.
    """
    from vllm.models.deepseek_v41.nvidia.specialized_decode.runtime.metadata_graphs import (  # noqa: E501
        AttnMetadataCudaGraphs,
    )

    original = AttnMetadataCudaGraphs.capture

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

    AttnMetadataCudaGraphs.capture = capture
    try:
        yield
    finally:
        AttnMetadataCudaGraphs.capture = original
