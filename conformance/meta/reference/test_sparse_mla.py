"""The sparse-MLA group against values computed by hand."""

import pytest

from graphparity.conformance.meta.reference.hand_batches import decode_batch
from graphparity.reference.kv_cache_interface import MLAAttentionSpec
from graphparity.reference.sparse_mla import SparseMLAMetadataBuilder

COMPRESSED = MLAAttentionSpec(block_size=4, tokens_per_state=2)


def test_last_token_of_a_state_carries_its_slot() -> None:
    """Positions 4, 5 and 3, 4: states 2 and 1 end at 5 and 3; padding is -1."""
    common = decode_batch(
        [6, 5],
        block_table=[[7, 9], [5, 8], [0, 0]],
        slots=[36, 37, 23, 32, -1, -1],
        query_len=2,
        num_padded_reqs=1,
    )
    metadata = SparseMLAMetadataBuilder(COMPRESSED, topk_tokens=16).build(0, common)
    assert metadata.slot_mapping.tolist() == [-1, 18, 11, -1, -1, -1]
    assert metadata.req_id_per_token.tolist() == [0, 0, 1, 1, 0, 0]
    assert (metadata.num_reqs, metadata.num_actual_tokens) == (3, 6)
    assert (metadata.block_size, metadata.topk_tokens) == (4, 16)
    assert (metadata.max_query_len, metadata.max_seq_len) == (2, 6)


def test_token_without_a_slot_writes_no_state() -> None:
    """A replayed token's compressed state is cached already."""
    common = decode_batch([6, 4], block_table=[[7, 9], [5, 8]], slots=[-1, 23])
    metadata = SparseMLAMetadataBuilder(COMPRESSED, topk_tokens=16).build(0, common)
    assert metadata.slot_mapping.tolist() == [-1, 11]


def test_clamped_table_is_a_new_one() -> None:
    """Negative block ids become 0 in the result only."""
    common = decode_batch([6], block_table=[[7, 9, -3]], slots=[37])
    metadata = SparseMLAMetadataBuilder(COMPRESSED, topk_tokens=16).build(0, common)
    assert metadata.block_table.tolist() == [[7, 9, 0]]
    assert common.block_table_tensor.tolist() == [[7, 9, -3]]


def test_without_compression_slots_and_table_are_the_runners() -> None:
    """Ratio 1 passes values through, unclamped."""
    common = decode_batch([6], block_table=[[7, 9, -3]], slots=[37])
    spec = MLAAttentionSpec(block_size=4)
    metadata = SparseMLAMetadataBuilder(spec, topk_tokens=16).build(0, common)
    assert metadata.slot_mapping.tolist() == [37]
    assert metadata.block_table.tolist() == [[7, 9, -3]]


def test_other_ratios_are_refused() -> None:
    """The error names the ratio."""
    spec = MLAAttentionSpec(block_size=4, tokens_per_state=4)
    with pytest.raises(ValueError, match="tokens_per_state=4"):
        SparseMLAMetadataBuilder(spec, topk_tokens=16)
