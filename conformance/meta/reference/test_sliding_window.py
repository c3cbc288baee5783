"""The sliding-window group against values computed by hand."""

import pytest

from graphparity.conformance.meta.reference.hand_batches import decode_batch, int32
from graphparity.reference.kv_cache_interface import SlidingWindowMLASpec
from graphparity.reference.sliding_window import SlidingWindowMetadataBuilder

SPEC = SlidingWindowMLASpec(block_size=4, sliding_window=3)
BUILDER = SlidingWindowMetadataBuilder(SPEC, decode_query_len=2)


def test_window_crosses_a_block_edge() -> None:
    """Positions 3, 4, 5 lie in blocks 7 and 9; a short context fills with -1."""
    common = decode_batch([6, 2], block_table=[[7, 9], [5, 8]], slots=[37, 21])
    metadata = BUILDER.build(0, common)
    assert metadata.decode_swa_indices.tolist() == [[[31, 36, 37]], [[20, 21, -1]]]
    assert metadata.decode_swa_lens.tolist() == [3, 2]
    assert metadata.decode_swa_width == 3
    assert metadata.max_decode_query_len == 1


def test_each_query_token_has_its_own_window() -> None:
    """Two tokens a request: windows end at positions 4 and 5, and at 0 and 1."""
    common = decode_batch(
        [6, 2], block_table=[[7, 9], [5, 8]], slots=[36, 37, 20, 21], query_len=2
    )
    metadata = BUILDER.build(0, common)
    assert metadata.decode_swa_indices.tolist() == [
        [[30, 31, 36]],
        [[31, 36, 37]],
        [[20, -1, -1]],
        [[20, 21, -1]],
    ]
    assert metadata.decode_swa_lens.tolist() == [3, 3, 1, 2]


def test_padded_request_reads_nothing() -> None:
    """A padding token is invalid, its row -1, its count 0, its request 0."""
    common = decode_batch(
        [6, 2],
        block_table=[[7, 9], [5, 8], [0, 0]],
        slots=[37, 21, -1],
        num_padded_reqs=1,
    )
    metadata = BUILDER.build(0, common)
    assert metadata.is_valid_token.tolist() == [True, True, False]
    assert metadata.decode_swa_indices[2].tolist() == [[-1, -1, -1]]
    assert metadata.decode_swa_lens.tolist() == [3, 2, 0]
    assert metadata.token_to_req_indices.tolist() == [0, 1, 0]
    assert (metadata.num_decodes, metadata.num_decode_tokens) == (3, 3)
    assert (metadata.num_prefills, metadata.num_prefill_tokens) == (0, 0)


def test_live_token_without_a_slot_reads_nothing() -> None:
    """Validity is the slot's sign, not the token's place."""
    common = decode_batch([6, 2], block_table=[[7, 9], [5, 8]], slots=[-1, 21])
    metadata = BUILDER.build(0, common)
    assert metadata.decode_swa_lens.tolist() == [0, 2]
    assert metadata.decode_swa_indices.tolist() == [[[-1, -1, -1]], [[20, 21, -1]]]


def test_replay_start_bounds_the_window_below() -> None:
    """From position 5 on, request 0 sees one token; request 1 is unbounded."""
    common = decode_batch([6, 2], block_table=[[7, 9], [5, 8]], slots=[37, 21])
    metadata = BUILDER.build(0, common, replay_start=int32([5, 0]))
    assert metadata.decode_swa_indices.tolist() == [[[37, -1, -1]], [[20, 21, -1]]]
    assert metadata.decode_swa_lens.tolist() == [1, 2]
    assert metadata.replay_start.tolist() == [5, 0]


def test_replay_start_of_real_requests_serves_a_padded_step() -> None:
    """The model state passes real rows only; padded rows start at 0."""
    common = decode_batch(
        [6], block_table=[[7, 9], [0, 0]], slots=[37, -1], num_padded_reqs=1
    )
    metadata = BUILDER.build(0, common, replay_start=int32([4]))
    assert metadata.replay_start.tolist() == [4, 0]


def test_replay_start_past_the_token_leaves_an_empty_row() -> None:
    """The count is the kernel's difference: position 5 from 8 on is 6 - 8."""
    common = decode_batch([6], block_table=[[7, 9]], slots=[37])
    metadata = BUILDER.build(0, common, replay_start=int32([8]))
    assert metadata.decode_swa_indices.tolist() == [[[-1, -1, -1]]]
    assert metadata.decode_swa_lens.tolist() == [-2]


def test_prefill_row_is_refused() -> None:
    """A query longer than a decode's names the lengths and the bound."""
    common = decode_batch([6], block_table=[[7, 9]], slots=[1, 2, 3], query_len=3)
    with pytest.raises(ValueError, match=r"query_lens=\[3\].*decode_query_len=2"):
        BUILDER.build(0, common)


def test_unequal_query_lengths_are_refused() -> None:
    """One and two tokens a request are no uniform batch."""
    common = decode_batch([6, 2], block_table=[[7, 9], [5, 8]], slots=[1, 2, 3])
    common.query_start_loc_cpu = int32([0, 2, 3])
    with pytest.raises(ValueError, match=r"query_lens=\[2, 1\]"):
        BUILDER.build(0, common)
