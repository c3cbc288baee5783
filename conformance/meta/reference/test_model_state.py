"""The reference model state: lookback, replay starts, upload rule, builds."""

import dataclasses
from typing import Any

import pytest
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
    return [
        [AttentionGroup(object, ["ring"], RING, 0, metadata_builders=[ring])]
        for ring in [CompressorMetadataBuilder(RING)]
    ] + [
        [
            AttentionGroup(
                object,
                ["window"],
                WINDOW,
                1,
                metadata_builders=[SlidingWindowMetadataBuilder(WINDOW)],
            )
        ],
        [
            AttentionGroup(
                object,
                ["latents", "shared"],
                LATENTS,
                2,
                metadata_builders=[SparseMLAMetadataBuilder(LATENTS, topk_tokens=16)],
            )
        ],
    ]


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


def test_lookback_is_newest_first_and_minus_one_before_the_start() -> None:
    """Positions 5 and 1 look back on ids 4, 3 and on id 0 alone."""
    ids = int32([list(range(10 * req, 10 * req + 10)) for req in range(3)])
    state = model_state()
    inputs = state.prepare_inputs(decode_step(), Requests(TokenIds(ids)))
    assert inputs["lookback_token_ids"] is state.lookback_token_ids
    assert inputs["lookback_token_ids"].tolist() == [
        [24, 23],
        [0, -1],
        [-1, -1],
        [-1, -1],
    ]


def test_dummy_lookback_is_all_minus_one_in_the_same_buffer() -> None:
    """A captured graph reads the buffer the next step refills."""
    state = model_state()
    assert state.lookback_token_ids is not None
    state.lookback_token_ids.fill_(7)
    inputs = state.prepare_dummy_inputs(2, 2)
    assert inputs["lookback_token_ids"] is state.lookback_token_ids
    assert inputs["lookback_token_ids"].tolist() == [[-1, -1]] * 4


def test_depth_0_has_no_lookback() -> None:
    """No buffer and no model input."""
    state = model_state(depth=0)
    ids = int32([[0] * 10] * 3)
    assert state.prepare_inputs(decode_step(), Requests(TokenIds(ids))) == {}
    assert state.prepare_dummy_inputs(1, 1) == {}


def test_full_step_has_padded_sizes_and_every_layer() -> None:
    """Layers of a group share one object; a padded request is empty."""
    metadata = prepare_attn(model_state(), decode_step())
    assert list(metadata) == ["ring", "window", "latents", "shared"]
    assert metadata["latents"] is metadata["shared"]
    assert metadata["latents"].num_reqs == 3
    assert metadata["latents"].max_seq_len == 6
    assert metadata["ring"].slot_mapping[:2].tolist() == [45, 25]
    assert metadata["window"].decode_swa_lens.tolist() == [3, 2, 0]
    assert metadata["window"].token_to_req_indices.tolist() == [0, 1, 0]


def test_eager_step_has_real_sizes() -> None:
    """Outside FULL mode the padded request is not built."""
    metadata = prepare_attn(model_state(), decode_step(), mode=CUDAGraphMode.NONE)
    assert metadata["latents"].num_reqs == 2
    assert metadata["window"].decode_swa_lens.tolist() == [3, 2]


def test_capture_takes_the_worst_case_length() -> None:
    """``max_seq_len`` is the model's, so the graph serves every replay."""
    metadata = prepare_attn(
        model_state(), decode_step(), mode=CUDAGraphMode.NONE, for_capture=True
    )
    assert metadata["latents"].max_seq_len == 64


def test_decodes_carry_no_replay_start() -> None:
    """The request's start stays in the table; slots are untouched."""
    state = model_state()
    state.add_request(2, NewRequest(5))
    slots = slot_mappings()
    prepare_attn(state, decode_step(), slots=slots)
    assert state.replay_start.tolist() == [0, 0, 0, 0]
    assert slots.tolist() == slot_mappings().tolist()


def test_replayed_tokens_lose_their_slots_in_cacheable_groups_only() -> None:
    """Request 0 prefills from 5: latents are cached, the ring and window are not."""
    state = model_state()
    state.add_request(2, NewRequest(5))
    slots = slot_mappings()
    metadata = prepare_attn(
        state, decode_step(is_prefilling=[True, False]), slots=slots
    )
    assert state.replay_start.tolist() == [5, 0, 0, 0]
    assert slots.tolist() == [[-1, -1, -1], [37, 21, -1], [-1, 25, -1]]
    assert metadata["window"].decode_swa_lens.tolist() == [1, 2, 0]
    assert metadata["latents"].slot_mapping.tolist() == [-1, 25, -1]


@pytest.mark.parametrize(("start", "slot"), [(6, 17), (5, -1), (3, -1), (2, 17)])
def test_replay_covers_one_window_from_its_start(start: int, slot: int) -> None:
    """Position 5 is replayed from 3, 4 and 5, not from 2 or 6: the window is 3."""
    state = model_state()
    state.add_request(2, NewRequest(start))
    slots = slot_mappings()
    prepare_attn(state, decode_step(is_prefilling=[True, False]), slots=slots)
    assert slots[2].tolist() == [slot, 25, -1]


def test_known_zeros_are_not_uploaded() -> None:
    """One upload serves all decode steps of as many or fewer requests."""
    state = model_state()
    for expected in (1, 1):
        prepare_attn(state, decode_step())
        assert state.num_replay_start_uploads == expected


def test_more_requests_than_known_zeros_upload() -> None:
    """Two rows are known; a step of three uploads again."""
    state = model_state()
    prepare_attn(state, decode_step())
    prepare_attn(state, input_batch([6, 2, 4], InputBuffers(4, 8, CPU)))
    assert state.num_replay_start_uploads == 2


def test_uploads_come_back_after_a_replay() -> None:
    """A non-zero start voids what was known, until zeros are uploaded."""
    state = model_state()
    state.add_request(2, NewRequest(5))
    uploads = []
    for is_prefilling in ([False, False], [True, False], [False, False]):
        prepare_attn(state, decode_step(is_prefilling=is_prefilling))
        uploads.append(state.num_replay_start_uploads)
    prepare_attn(state, decode_step())
    assert [*uploads, state.num_replay_start_uploads] == [1, 2, 3, 3]
    assert state.replay_start.tolist() == [0, 0, 0, 0]


def test_without_bounded_replay_nothing_is_uploaded() -> None:
    """A model whose window is cached has no replay starts."""
    state = model_state()
    spec = dataclasses.replace(WINDOW, bounded_replay=False)
    config = dataclasses.replace(
        KV_CACHE_CONFIG, kv_cache_groups=[KVCacheGroupSpec(["window"], spec)]
    )
    groups = attn_groups()[1:2]
    state.prepare_attn(
        decode_step(),
        CUDAGraphMode.FULL,
        BLOCK_TABLES[1:2],
        slot_mappings()[1:2],
        groups,
        config,
    )
    assert state.num_replay_start_uploads == 0


def test_prefill_step_stages_replay_but_builds_nothing() -> None:
    """Prefill metadata is outside the reference; its side effects are not."""
    state = model_state()
    state.add_request(0, NewRequest(4))
    batch = dataclasses.replace(
        input_batch([6], InputBuffers(4, 8, CPU), query_len=3, is_prefilling=[True]),
        decode_graph_eligible=False,
    )
    slots = torch.tensor([[-1] * 3, [31, 36, 37], [11, 16, 17]])
    assert prepare_attn(state, batch, mode=CUDAGraphMode.NONE, slots=slots) == {}
    assert slots.tolist() == [[-1] * 3, [31, 36, 37], [11, -1, -1]]
    assert state.replay_start.tolist() == [4, 0, 0, 0]


def test_full_step_with_a_long_query_is_refused() -> None:
    """A FULL step is uniform decode; the error names the lengths."""
    batch = input_batch([6], InputBuffers(4, 8, CPU), query_len=3)
    with pytest.raises(ValueError, match=r"query_lens=\[3\]"):
        prepare_attn(model_state(), batch)


def test_smaller_kernel_blocks_split_the_table() -> None:
    """Kernel block ``j`` of block ``b`` is ``2 * b + j``; the stride may be wider."""
    group = AttentionGroup(object, ["latents"], LATENTS, 2, kernel_block_size=2)
    table = int32([[7, 0]])
    assert group.map_to_kernel_block_table(table).tolist() == [[14, 15, 0, 1]]
    group.kernel_block_stride = 10
    assert group.map_to_kernel_block_table(table).tolist() == [[70, 71, 0, 1]]
