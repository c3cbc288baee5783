"""K11: recordings and the engine's life do not fit: profiling, a new KV cache, sleep,
a second recording.
"""

from contextlib import AbstractContextManager
from typing import Any

from graphparity.conformance.faults.fault import Kind, Layer, fault
from graphparity.conformance.faults.patches import (
    STATE,
    diverted,
    replaced,
    while_capturing,
)
from graphparity.conformance.subjects.torch_builders import TorchSlidingWindowBuilder
from graphparity.fastpath.metadata_graphs import MetadataGraphs


@fault(
    Kind.K11,
    "vllm#53682",
    check="recorded again",
    expected=r"replays of a recording: 1, but should be 0",
    layer=Layer.STATE,
)
def recordings_outlive_the_kv_cache() -> AbstractContextManager[Any]:
    """A new KV cache is adopted, and steps go on replaying over the last one."""

    def initialize(sound: Any, self: Any, *arguments: Any) -> None:
        super(STATE, self).initialize_kv_cache(*arguments)

    return replaced(STATE, "initialize_kv_cache", initialize)


@fault(
    Kind.K11,
    "vllm#48526",
    "vllm#53682",
    check="recorded again",
    expected=r"GraphKey\(.*\): \d+ nodes after its release, but should be none",
    layer=Layer.STATE,
)
def released_graphs_keep_their_memory() -> AbstractContextManager[Any]:
    """Released recordings are forgotten, but their graphs are not given up."""

    def release(sound: Any, self: Any) -> None:
        self._recordings.clear()
        self._refusals.clear()

    return replaced(MetadataGraphs, "release", release)


@fault(
    Kind.K11,
    "vllm#45648",
    check="recorded again",
    expected=r"GraphKey\(.*\): missing, but should be recorded",
    layer=Layer.STATE,
)
def nothing_recorded_after_a_release() -> AbstractContextManager[Any]:
    """A state remembers that it has recorded, and does not do so again after sleep."""
    have_recorded: set[int] = set()

    def record(sound: Any, self: Any, *arguments: Any, **rest: Any) -> None:
        if id(self) not in have_recorded:
            have_recorded.add(id(self))
            sound(self, *arguments, **rest)

    return replaced(MetadataGraphs, "record", record)


@fault(
    Kind.K11,
    "vllm#42444",
    "vllm#15308",
    check="recorded again",
    expected=r"GraphKey\(.*\): recorded otherwise, but should be as the first time",
)
def second_recording_lacks_what_the_first_planned() -> AbstractContextManager[Any]:
    """What a profiling run's throw-away recording planned once is not planned by the
    recording that serves.
    """
    planned: set[Any] = set()

    def fill(sound: Any, self: Any, batch: Any, *rest: Any) -> None:
        key = (batch.num_reqs, batch.num_reqs_after_padding)
        builder = diverted(self, "decode_swa_lens") if key in planned else self
        planned.add(key)
        sound(builder, batch, *rest)

    return while_capturing(TorchSlidingWindowBuilder, "_fill_windows", fill)
