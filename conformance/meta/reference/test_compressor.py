"""The compressor group against values computed by hand."""

import dataclasses

import pytest

from graphparity.conformance.meta.reference.hand_batches import decode_batch
from graphparity.reference.compressor import CompressorMetadataBuilder
from graphparity.reference.kv_cache_interface import CircularBufferSpec

BUILDER = CompressorMetadataBuilder(CircularBufferSpec(block_size=8))


def test_ring_slot_wraps_at_the_capacity() -> None:
    """``slot = block * 8 + position % 8``: positions 7, 8 and 16, 17 of two rings."""
    common = decode_batch([9, 18], block_table=[[5], [3]], slots=[-1] * 4, query_len=2)
    metadata = BUILDER.build(0, common)
    assert metadata.slot_mapping.tolist() == [47, 40, 24, 25]
    assert metadata.token_to_req_indices.tolist() == [0, 0, 1, 1]
    assert metadata.query_start_loc.tolist() == [0, 2, 4]


def test_null_block_gives_no_slot() -> None:
    """A request whose ring block is 0 writes nothing."""
    common = decode_batch([9, 18], block_table=[[0], [3]], slots=[-1, -1])
    assert BUILDER.build(0, common).slot_mapping.tolist() == [-1, 25]


def test_padding_tokens_map_to_request_0() -> None:
    """The live slots are exact; padding tokens carry request index 0."""
    common = decode_batch(
        [9, 18], block_table=[[5], [3], [0]], slots=[-1] * 3, num_padded_reqs=1
    )
    metadata = BUILDER.build(0, common)
    assert metadata.slot_mapping[:2].tolist() == [40, 25]
    assert metadata.token_to_req_indices.tolist() == [0, 1, 0]
    assert metadata.query_start_loc.tolist() == [0, 1, 2, 2]


def test_tokens_past_num_actual_tokens_have_no_slot() -> None:
    """A step with real sizes leaves the tail of a longer slot mapping at -1."""
    common = decode_batch([9], block_table=[[5]], slots=[-1, -1, -1])
    assert BUILDER.build(0, common).slot_mapping.tolist() == [40, -1, -1]


def test_missing_positions_are_refused() -> None:
    """The error names the value and the remedy."""
    common = decode_batch([9], block_table=[[5]], slots=[-1])
    common = dataclasses.replace(common, positions=None)
    with pytest.raises(ValueError, match="positions=None"):
        BUILDER.build(0, common)


def test_results_do_not_alias_the_batch() -> None:
    """Writing a result leaves the batch as it was."""
    common = decode_batch([9], block_table=[[5]], slots=[-1])
    metadata = BUILDER.build(0, common)
    metadata.query_start_loc.fill_(7)
    assert common.query_start_loc.tolist() == [0, 1]
