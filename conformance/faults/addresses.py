"""K4: a recording points where later steps put nothing.

Every device tensor of replayed metadata must lie in declared memory, always at the same
place, and where the eager build has it.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

from graphparity.conformance.faults.fault import Kind, Layer, fault
from graphparity.conformance.faults.patches import looked_up, replaced, while_capturing
from graphparity.conformance.subjects.torch_builders import (
    TorchCompressorBuilder,
    TorchSlidingWindowBuilder,
)
from graphparity.fastpath.metadata_graphs import MetadataGraphs


@fault(
    Kind.K4,
    "sglang#27664",
    check="decode steps",
    expected=r"compressor\.slot_mapping: outside the builders' buffers",
)
def slots_in_a_fresh_tensor() -> AbstractContextManager[Any]:
    """The recorded metadata points into the graph's own pool."""

    def build(sound: Any, *arguments: Any) -> Any:
        built = sound(*arguments)
        return replace(built, slot_mapping=built.slot_mapping.clone())

    return while_capturing(TorchCompressorBuilder, "build", build)


@fault(
    Kind.K4,
    "vllm#51167",
    "vllm#36298",
    check="decode steps",
    expected=r"sliding_window\.seq_lens: outside the builders' buffers",
)
def common_metadata_copied_in_every_build() -> AbstractContextManager[Any]:
    """Both builds copy what all groups share before they hand it on."""

    def build(sound: Any, self: Any, batch: Any, *rest: Any) -> Any:
        return sound(self, replace(batch, seq_lens=batch.seq_lens.clone()), *rest)

    return replaced(TorchSlidingWindowBuilder, "build", build)


@fault(
    Kind.K4,
    "sglang#26019",
    "sglang#26166",
    check="decode steps",
    expected=r"compressor\.slot_mapping: replayed at 0x",
    layer=Layer.STATE,
)
def replays_rebuild_their_tensors() -> AbstractContextManager[Any]:
    """From a key's second replay on, the slots are returned elsewhere than captured."""
    replayed: set[Any] = set()

    def look_up(sound: Any, _: MetadataGraphs, key: Any) -> Any:
        recording = sound(key)
        if recording and key in replayed:
            metadata = recording.attn_metadata
            slots = metadata["compressor"].slot_mapping
            moved = slots.as_strided(slots.shape, slots.stride(), 1)
            compressor = replace(metadata["compressor"], slot_mapping=moved)
            metadata = {**metadata, "compressor": compressor}
            recording = recording._replace(attn_metadata=metadata)
        replayed.add(key)
        return recording

    return looked_up(look_up)


@fault(
    Kind.K4,
    "vLLM-2080Ti-Definitive#183",
    check="decode steps",
    expected=r"sliding_window\.slot_mapping: at \(",
)
def slots_of_the_capture_kept() -> AbstractContextManager[Any]:
    """The recording reads the slots from a row that no later step fills."""

    def build(
        sound: Any, self: Any, batch: Any, table: Any, slots: Any, *rest: Any
    ) -> Any:
        whole = slots._base
        return sound(self, batch, table, whole[0, : slots.numel()], *rest)

    return while_capturing(TorchSlidingWindowBuilder, "build", build)


@fault(
    Kind.K4,
    "trtllm#10393",
    check="decode steps",
    expected=r"sliding_window\.query_start_loc_cpu\[",
    layer=Layer.STATE,
)
@contextmanager
def keys_of_a_rung_share_metadata() -> Iterator[None]:
    """Keys that are padded alike return the metadata of the one captured last, each
    after its own replay.
    """
    of_rung: dict[Any, Any] = {}

    def capture(sound: Any, self: Any, key: Any, build: Any) -> None:
        sound(self, key, build)
        of_rung[key.rung] = self.recordings[key].attn_metadata

    def look_up(sound: Any, _: MetadataGraphs, key: Any) -> Any:
        recording = sound(key)
        return recording and recording._replace(attn_metadata=of_rung[key[1], key[3]])

    with replaced(MetadataGraphs, "_capture", capture), looked_up(look_up):
        yield
