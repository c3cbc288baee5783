"""K5: what is planned before attention runs is left as an earlier step planned it."""

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from graphparity.conformance.faults.fault import Kind, Layer, fault
from graphparity.conformance.faults.patches import diverted, looked_up, while_capturing
from graphparity.conformance.subjects.torch_builders import (
    TorchCompressorBuilder,
    TorchSlidingWindowBuilder,
)
from graphparity.fastpath.metadata_graphs import MetadataGraphs


@fault(
    Kind.K5,
    "vllm#42444",
    check="decode steps",
    expected=r"sliding_window\.decode_swa_lens\[",
)
def lengths_planned_by_the_warm_up_alone() -> AbstractContextManager[Any]:
    """The warm-up plans the window lengths, so the capture finds them planned and
    records nothing that fills them.
    """

    def fill(sound: Any, self: Any, *arguments: Any) -> None:
        sound(diverted(self, "decode_swa_lens"), *arguments)

    return while_capturing(TorchSlidingWindowBuilder, "_fill_windows", fill)


@fault(
    Kind.K5,
    "trtllm#18769",
    check="decode steps",
    expected=r"sliding_window\.decode_swa_indices\[",
)
def plan_of_several_requests_left_to_the_forward() -> AbstractContextManager[Any]:
    """For more than one request the build leaves the window's plan to the forward,
    which a replay never runs; a single request looks fine.
    """

    def fill(sound: Any, self: Any, batch: Any, *rest: Any) -> None:
        is_left = batch.num_reqs > 1
        sound(diverted(self, "decode_swa_indices") if is_left else self, batch, *rest)

    return while_capturing(TorchSlidingWindowBuilder, "_fill_windows", fill)


@fault(
    Kind.K5,
    "rtp-llm#1084",
    "rtp-llm#1254",
    check="decode steps",
    expected=r"compressor\.slot_mapping\[",
)
def plan_kept_for_small_batches_in_large_graphs() -> AbstractContextManager[Any]:
    """A replay brings in the new page table, but not the slots planned from it, where
    the batch is smaller than its graph.
    """

    def build(sound: Any, self: Any, batch: Any, num_tokens: int, table: Any) -> Any:
        if batch.num_reqs == batch.num_reqs_after_padding:
            return sound(self, batch, num_tokens, table)
        built = sound(diverted(self, "slot_mapping_buffer"), batch, num_tokens, table)
        return replace(built, slot_mapping=self.slot_mapping_buffer[:num_tokens])

    return while_capturing(TorchCompressorBuilder, "build", build)


@fault(
    Kind.K5,
    "vllm#41162",
    "vllm#46849",
    check="decode steps",
    expected=r"replays of a recording: 0, but should be 1",
    layer=Layer.STATE,
)
def only_the_first_of_chained_steps_replayed() -> AbstractContextManager[Any]:
    """Steps of one key in a row are served with the metadata of the first of them."""
    last: list[Any] = []

    def look_up(sound: Any, _: MetadataGraphs, key: Any) -> Any:
        recording, is_chained = sound(key), last == [key]
        last[:] = [key]
        return (
            recording._replace(launch=None) if recording and is_chained else recording
        )

    return looked_up(look_up)


@fault(
    Kind.K5,
    "vllm#40410",
    "vllm#49364",
    check="decode steps",
    expected=r"sliding_window\.is_valid_token: at \(",
)
def another_builder_of_the_class_recorded() -> AbstractContextManager[Any]:
    """Two builders of one class exist, and the recording refreshes the buffers of the
    one that no reader was given.
    """

    def build(sound: Any, self: Any, *arguments: Any) -> Any:
        twin = diverted(self, "is_valid_token", "decode_swa_lens", "decode_swa_indices")
        return sound(twin, *arguments)

    return while_capturing(TorchSlidingWindowBuilder, "build", build)
