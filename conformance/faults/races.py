"""K8: a buffer is overwritten while an earlier step's work still reads it, or read
before its copy has landed.

No race happens on a CPU. Each fault but the last makes what the losing side of one race
sees: a copy that lands a step late, a launch that runs before or after its inputs. The
last one is a real race, on a GPU.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import torch

from graphparity.conformance.faults.fault import Kind, Layer, fault
from graphparity.conformance.faults.patches import STATE, replaced
from graphparity.conformance.subjects.subject import MeteredGraph
from graphparity.fastpath.recorders.cuda import CudaBuildGraph
from graphparity.fastpath.replay_starts import KnownZeroReplayStarts

SPIN_CYCLES = 50_000_000
"""Some 30 ms of a GPU."""


@fault(
    Kind.K8,
    "vllm#56347",
    "trtllm#14128",
    check="decode steps",
    expected=r"sliding_window\.decode_swa_lens\[",
    layer=Layer.STATE,
)
def replay_overtakes_the_copy_of_lengths() -> AbstractContextManager[Any]:
    """A replay reads the sequence lengths of the step before, whose successors have not
    landed yet.
    """
    landed: list[torch.Tensor] = []

    def prepare(sound: Any, self: Any, batch: Any, *step: Any, **kwargs: Any) -> Any:
        current = batch.seq_lens.clone()
        if landed:
            shared = min(len(landed[0]), len(current))
            batch.seq_lens[:shared] = landed[0][:shared]
        built = sound(self, batch, *step, **kwargs)
        batch.seq_lens.copy_(current)
        landed[:] = [current]
        return built

    return replaced(KnownZeroReplayStarts, "prepare_attn", prepare)


@fault(
    Kind.K8,
    "vllm#35137",
    check="known history",
    expected=r"input_buffers\.seq_lens\[",
    layer=Layer.STATE,
)
@contextmanager
def copies_of_a_dummy_run_land_late() -> Iterator[None]:
    """A dummy run does not wait for its copies, which land on the next inputs."""
    in_flight: list[torch.Tensor] = []

    def count(sound: Any, self: Any, batch: Any, mode: Any, *step: Any) -> Any:
        if step[0]:  # for_capture
            in_flight.append(batch.seq_lens.clone())
        return sound(self, batch, mode, *step)

    def prepare(sound: Any, self: Any, batch: Any, *step: Any, **kwargs: Any) -> Any:
        while in_flight and not kwargs.get("for_capture"):
            late = in_flight.pop()
            shared = min(len(late), len(batch.seq_lens))
            batch.seq_lens[:shared] = late[:shared]
        return sound(self, batch, *step, **kwargs)

    with (
        replaced(STATE, "_count_eager", count),
        replaced(KnownZeroReplayStarts, "prepare_attn", prepare),
    ):
        yield


@fault(
    Kind.K8,
    "vllm#29288",
    "trtllm#14128",
    check="known history",
    expected=r"state\._replay_start\[",
    layer=Layer.STATE,
)
def staging_array_reused_while_its_copy_is_in_flight() -> AbstractContextManager[Any]:
    """Replay starts are copied from one staging array, which is rewritten before the
    copy has read it.
    """
    staging = np.zeros(64, dtype=np.int32)

    def upload(sound: Any, self: Any, values: Any, num_reqs: int) -> Any:
        stale = staging[:num_reqs].copy()
        staging[:num_reqs] = values
        return sound(self, stale, num_reqs)

    return replaced(KnownZeroReplayStarts, "_upload_replay_start", upload)


@fault(
    Kind.K8,
    "vllm#56347",
    "vllm#42603",
    check="decode steps",
    expected=r"builders\.compressor\.slot_mapping_buffer\[",
    layer=Layer.STATE,
)
def metadata_read_before_its_replay_ran() -> AbstractContextManager[Any]:
    """Nothing orders the reader behind the replay, which runs only when the next one is
    launched.
    """
    launched: list[Callable[[], None]] = []

    def replay(sound: Any, graph: Any) -> None:
        while launched:
            launched.pop()()
        launched.append(lambda: sound(graph) if graph.num_nodes else None)

    return replaced(MeteredGraph, "replay", replay)


@fault(
    Kind.K8,
    "vllm#35137",
    "vllm#56347",
    check="decode steps",
    expected=r"builders\.compressor\.slot_mapping_buffer\[",
    layer=Layer.CUDA,
)
def replay_on_a_stream_that_nobody_waits_for() -> AbstractContextManager[Any]:
    """A replay is launched on a stream of its own, behind a long kernel, and nobody
    waits for it.
    """

    def init(sound: Any, self: Any, *arguments: Any) -> None:
        sound(self, *arguments)
        launch, stream = self.replay, torch.cuda.Stream()

        def replay() -> None:
            with torch.cuda.stream(stream):
                torch.cuda._sleep(SPIN_CYCLES)
                launch()

        self.replay = replay

    return replaced(CudaBuildGraph, "__init__", init)
