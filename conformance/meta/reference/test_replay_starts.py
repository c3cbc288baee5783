"""The reference model state: replay starts, padded slots, the upload rule."""

import dataclasses

import pytest
import torch

from graphparity.conformance.meta.reference.hand_batches import input_batch
from graphparity.conformance.meta.reference.hand_steps import (
    BLOCK_TABLES,
    CPU,
    KV_CACHE_CONFIG,
    WINDOW,
    NewRequest,
    attn_groups,
    decode_step,
    model_state,
    prepare_attn,
    slot_mappings,
)
from graphparity.reference.input_batch import InputBuffers
from graphparity.reference.interface import CUDAGraphMode
from graphparity.reference.kv_cache_interface import KVCacheGroupSpec


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
