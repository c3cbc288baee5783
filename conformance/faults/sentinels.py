"""K2: builders and readers disagree about the value that means "nothing here".

-1 and 0 are both in use, slot 0 and block 0 exist, and -1 indexes the last row of a
tensor. A sentinel that both builds have wrong is equal in both: the reference catches
it.
"""

from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import torch

from graphparity.conformance.faults.fault import Kind, Layer, fault
from graphparity.conformance.faults.patches import while_capturing
from graphparity.conformance.subjects import torch_builders
from graphparity.conformance.subjects.torch_builders import (
    TorchCompressorBuilder,
    TorchSlidingWindowBuilder,
)


@fault(
    Kind.K2,
    "rvllm#32",
    "vLLM-2080Ti-Definitive#93",
    check="decode steps",
    expected=r"compressor\.slot_mapping\[.*: \[0.*but should be \[-1",
)
def padding_writes_slot_zero() -> AbstractContextManager[Any]:
    """Both builds mean slot 0 by "no slot", which a live request may own."""
    return mock.patch.object(torch_builders, "PAD_SLOT_ID", 0)


@fault(
    Kind.K2,
    "vllm#39064",
    check="decode steps",
    expected=r"compressor\.slot_mapping\[.*but should be \[-1",
)
def null_block_taken_for_a_ring_block() -> AbstractContextManager[Any]:
    """The recorded build guards against negative blocks, but the null block is 0: a
    request without a ring is given slots of it.
    """

    def build(sound: Any, self: Any, batch: Any, num_tokens: int, table: Any) -> Any:
        built = sound(self, batch, num_tokens, table)
        blocks = table[built.token_to_req_indices.long(), 0].long()
        offsets = batch.positions[:num_tokens] % self.capacity
        slots = torch.where(blocks == 0, offsets, built.slot_mapping)
        built.slot_mapping.copy_(slots)
        return built

    return while_capturing(TorchCompressorBuilder, "build", build)


@fault(
    Kind.K2,
    "vllm#43810",
    "vllm#43869",
    check="decode steps",
    expected=r"sliding_window\.decode_swa_indices\[.*but should be \[.*-1",
)
def minus_one_indexes_the_last_slot() -> AbstractContextManager[Any]:
    """The recorded build lets the slot -1 wrap to the last one."""

    def fill(sound: Any, self: Any, batch: Any, table: Any, *rest: Any) -> None:
        sound(self, batch, table, *rest)
        indices = self.decode_swa_indices
        indices.copy_(torch.where(indices < 0, indices + 4000, indices))

    return while_capturing(TorchSlidingWindowBuilder, "_fill_windows", fill)


@fault(
    Kind.K2,
    "sglang#30974",
    check="decode steps",
    expected=r"sliding_window\.decode_swa_lens\[.*2139062143.*but should be \[",
    layer=Layer.EMULATED,
)
def skipped_rows_stay_uninitialised() -> AbstractContextManager[Any]:
    """The recorded kernel skips padded rows of its output, which was never filled, and
    all of it is copied on.
    """

    def fill(sound: Any, self: Any, batch: Any, table: Any, *rest: Any) -> None:
        sound(self, batch, table, *rest)
        output = torch.empty_like(self.decode_swa_lens)
        live = slice(0, batch.num_tokens)
        output[live] = self.decode_swa_lens[live]
        self.decode_swa_lens.copy_(output)

    return while_capturing(TorchSlidingWindowBuilder, "_fill_windows", fill)


@fault(
    Kind.K2,
    "vLLM tests/v1/attention/test_cg_padding.py",
    check="decode steps",
    expected=r"compressor\.token_to_req_indices\[.*: \[-1.*but should be \[0",
)
def a_group_marks_padding_in_a_shared_map() -> AbstractContextManager[Any]:
    """The recorded build of one group maps padded tokens to -1, in the map of another
    group that maps them to request 0.
    """

    def build(sound: Any, self: Any, batch: Any, table: Any, *rest: Any) -> Any:
        built = sound(self, batch, table, *rest)
        built.token_to_req_indices[batch.num_tokens :] = -1
        return built

    return while_capturing(TorchSlidingWindowBuilder, "build", build)
