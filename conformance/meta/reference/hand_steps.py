"""A small model state and its steps, with every value written by hand.

Place: the inputs of the model state's tests.
Invariant: nothing is computed by the code under test.
"""

import dataclasses
from typing import Any

import torch

from graphparity.conformance.meta.reference.hand_batches import input_batch, int32
from graphparity.reference.attention import AttentionGroup
from graphparity.reference.compressor import CompressorMetadataBuilder
from graphparity.reference.input_batch import InputBatch, InputBuffers
from graphparity.reference.interface import CUDAGraphMode
from graphparity.reference.kv_cache_interface import (
    CircularBufferSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
)
from graphparity.reference.model_state import DecodeConfig, ReferenceModelState
from graphparity.reference.sliding_window import SlidingWindowMetadataBuilder
from graphparity.reference.sparse_mla import SparseMLAMetadataBuilder

CPU = torch.device("cpu")
RING = CircularBufferSpec(block_size=8)
WINDOW = SlidingWindowMLASpec(block_size=4, sliding_window=3, bounded_replay=True)
LATENTS = MLAAttentionSpec(block_size=4)
KV_CACHE_CONFIG = KVCacheConfig(
    num_blocks=16,
    kv_cache_tensors=[],
    kv_cache_groups=[
        KVCacheGroupSpec(["ring"], RING),
        KVCacheGroupSpec(["window"], WINDOW),
        KVCacheGroupSpec(["latents"], LATENTS),
    ],
)
BLOCK_TABLES = (
    int32([[5], [3], [0]]),
    int32([[7, 9], [5, 8], [0, 0]]),
    int32([[2, 4], [6, 1], [0, 0]]),
)


@dataclasses.dataclass
class NewRequest:
    """A request that holds window KV from ``replay_start``."""

    replay_start: int


@dataclasses.dataclass
class TokenIds:
    """Token ids on the device."""

    gpu: torch.Tensor


@dataclasses.dataclass
class Requests:
    """A request table of three rows."""

    all_token_ids: TokenIds


def model_state(*, depth: int = 2) -> ReferenceModelState:
    """A state of four requests, one query token each."""
    return ReferenceModelState(DecodeConfig(4, 8, 64, depth, CPU))


def attn_groups() -> list[list[AttentionGroup]]:
    """One attention group a KV cache group."""
    groups = [
        AttentionGroup(object, ["ring"], RING, 0),
        AttentionGroup(object, ["window"], WINDOW, 1),
        AttentionGroup(object, ["latents", "shared"], LATENTS, 2),
    ]
    groups[0].metadata_builders.append(CompressorMetadataBuilder(RING))
    groups[1].metadata_builders.append(SlidingWindowMetadataBuilder(WINDOW))
    groups[2].metadata_builders.append(
        SparseMLAMetadataBuilder(LATENTS, topk_tokens=16)
    )
    return [[group] for group in groups]


def slot_mappings() -> torch.Tensor:
    """Slots of positions 5 and 1 in each group; the third token is padding."""
    return torch.tensor([[-1, -1, -1], [37, 21, -1], [17, 25, -1]])


def prepare_attn(
    state: ReferenceModelState,
    batch: InputBatch,
    *,
    mode: CUDAGraphMode = CUDAGraphMode.FULL,
    slots: torch.Tensor | None = None,
    for_capture: bool = False,
) -> dict[str, Any]:
    """One step over the tables above."""
    slots = slot_mappings() if slots is None else slots
    return state.prepare_attn(
        batch,
        mode,
        BLOCK_TABLES,
        slots,
        attn_groups(),
        KV_CACHE_CONFIG,
        for_capture=for_capture,
    )


def decode_step(*, is_prefilling: list[bool] | None = None) -> InputBatch:
    """Requests of 6 and 2 tokens in state rows 2 and 0, and a padded one."""
    return input_batch(
        [6, 2],
        InputBuffers(4, 8, CPU),
        num_padded_reqs=1,
        is_prefilling=is_prefilling,
        req_indices=[2, 0],
    )
