"""K13: a buffer is sized by another bound than the padded shape that a graph writes.

An access past the end fails at once where bounds are checked. What stays silent, and is
planted here, is a buffer that was given less than it needs and cuts the rest off, or
shares it with its neighbour. Two of the faults are in both builds, which are then
equal: the reference catches them.
"""

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from graphparity.conformance.faults.fault import Kind, Layer, fault
from graphparity.conformance.faults.patches import replaced, while_capturing
from graphparity.conformance.subjects.torch_builders import (
    TorchCompressorBuilder,
    TorchSlidingWindowBuilder,
)
from graphparity.conformance.subjects.torch_decode import MAX_NUM_REQS
from graphparity.fastpath.metadata_graphs import MetadataGraphs


@fault(
    Kind.K13,
    "vllm#15308",
    check="decode steps",
    expected=r"compressor\.slot_mapping: .*8.*but should be .*16",
)
def slots_cut_off_at_max_num_seqs() -> AbstractContextManager[Any]:
    """Both builds keep the slots in a buffer of one row a request, and return as many
    as it holds.
    """

    def build(sound: Any, *arguments: Any) -> Any:
        built = sound(*arguments)
        return replace(built, slot_mapping=built.slot_mapping[:MAX_NUM_REQS])

    return replaced(TorchCompressorBuilder, "build", build)


@fault(
    Kind.K13,
    "sglang#29157",
    "sglang#26930",
    check="decode steps",
    expected=r"sliding_window\.decode_swa_indices\[\(0, 0, 0\)",
)
def neighbours_overlap_past_max_num_seqs() -> AbstractContextManager[Any]:
    """Two buffers are cut from one allocation, of which the first has room for a row a
    request; clearing its rows a token clears the second.
    """

    def init(sound: Any, self: Any, *arguments: Any) -> None:
        sound(self, *arguments)
        lens, indices = self.decode_swa_lens, self.decode_swa_indices
        arena = lens.new_zeros(MAX_NUM_REQS + indices.numel())
        self.decode_swa_lens = arena[: len(lens)]
        self.decode_swa_indices = arena[MAX_NUM_REQS:].view(indices.shape)

    return replaced(TorchSlidingWindowBuilder, "__init__", init)


@fault(
    Kind.K13,
    "vllm#15308",
    check="decode steps",
    expected=r"compressor\.slot_mapping\[\((8|9|1\d),\)",
)
def kernel_covers_max_num_seqs_rows() -> AbstractContextManager[Any]:
    """The recorded kernel runs over one row a request at most, so tokens past them keep
    the slots of an earlier step.
    """

    def build(sound: Any, self: Any, batch: Any, num_tokens: int, table: Any) -> Any:
        past = slice(MAX_NUM_REQS, num_tokens)
        kept = self.slot_mapping_buffer[past].clone()
        built = sound(self, batch, num_tokens, table)
        self.slot_mapping_buffer[past] = kept
        return built

    return while_capturing(TorchCompressorBuilder, "build", build)


@fault(
    Kind.K13,
    "ascend#8370",
    check="decode steps",
    expected=r"sliding_window\.block_table: absent, but should be present",
    layer=Layer.STATE,
)
def room_for_one_attention_type() -> AbstractContextManager[Any]:
    """A recording keeps the parameters of as many layers as one attention type has, in
    a model of two.
    """

    def capture(sound: Any, self: Any, key: Any, build: Any) -> None:
        sound(self, key, lambda: dict([*build().items()][:1]))

    return replaced(MetadataGraphs, "_capture", capture)
