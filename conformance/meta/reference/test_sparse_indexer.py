"""The sparse-indexer group against values computed by hand."""

import pytest

from graphparity.conformance.meta.reference.hand_batches import decode_batch
from graphparity.reference.attention import CommonAttentionMetadata
from graphparity.reference.kv_cache_interface import MLAAttentionSpec
from graphparity.reference.sparse_indexer import (
    DecodeRows,
    DeepseekV41SparseIndexerMetadata,
    hopper_rows,
)
from graphparity.reference.sparse_indexer_builder import SparseIndexerMetadataBuilder

SPEC = MLAAttentionSpec(block_size=4)
TABLE = [[7, 9], [5, 8], [0, 0]]


def padded_batch() -> CommonAttentionMetadata:
    """Requests of 6 and 3 tokens, two query tokens each, and a padded one."""
    return decode_batch(
        [6, 3],
        block_table=TABLE,
        slots=[36, 37, 21, 22, -1, -1],
        query_len=2,
        num_padded_reqs=1,
    )


def test_varlen_rows_are_tokens_with_request_indices() -> None:
    """Padding row 4 of 4 real tokens gets index 3, row 5 index 4: no request."""
    builder = SparseIndexerMetadataBuilder(
        SPEC, rows=DecodeRows.VARLEN, decode_query_len=2
    )
    decode = builder.build(0, padded_batch()).decode
    assert decode.seq_lens.tolist() == [[5], [6], [2], [3], [0], [0]]
    assert decode.block_table.tolist() == [
        [7, 9],
        [7, 9],
        [5, 8],
        [5, 8],
        [0, 0],
        [0, 0],
    ]
    assert decode.indices is not None
    assert decode.indices.tolist() == [0, 0, 1, 1, 3, 4]
    assert decode.decode_lens.tolist() == [1] * 6
    assert decode.per_req_decode_lens.tolist() == [2, 2, 0]
    assert not decode.requires_padding
    assert not decode.decode_is_uniform
    assert decode.write_max_decode_len == 2


def test_flattened_rows_are_tokens_without_indices() -> None:
    """Live rows repeat their request's table; padding rows have length 0."""
    builder = SparseIndexerMetadataBuilder(
        SPEC, rows=DecodeRows.PER_TOKEN, decode_query_len=2
    )
    decode = builder.build(0, padded_batch()).decode
    assert decode.seq_lens.tolist() == [[5], [6], [2], [3], [0], [0]]
    assert decode.block_table[:4].tolist() == [[7, 9], [7, 9], [5, 8], [5, 8]]
    assert decode.indices is None


def test_native_rows_are_requests_with_all_query_tokens() -> None:
    """A padded request has length 0, never a negative one, and needs padding."""
    builder = SparseIndexerMetadataBuilder(
        SPEC, rows=DecodeRows.PER_REQUEST, decode_query_len=2
    )
    decode = builder.build(0, padded_batch()).decode
    assert decode.seq_lens.tolist() == [[5, 6], [2, 3], [0, 0]]
    assert decode.block_table.tolist() == TABLE
    assert decode.decode_lens.tolist() == [2, 2, 0]
    assert decode.requires_padding


def test_compressed_rows_count_states() -> None:
    """Two tokens a state: contexts 5, 6, 2, 3 hold 2, 3, 1, 1 states."""
    spec = MLAAttentionSpec(block_size=4, tokens_per_state=2)
    builder = SparseIndexerMetadataBuilder(
        spec, rows=DecodeRows.VARLEN, decode_query_len=2
    )
    metadata = builder.build(0, padded_batch())
    assert metadata.decode.seq_lens.tolist() == [[2], [3], [1], [1], [0], [0]]
    # Positions 5 and 1 end a state: state 2 in block 9, state 0 in block 5.
    assert metadata.slot_mapping.tolist() == [-1, 18, 10, -1, -1, -1]
    assert metadata.seq_lens.tolist() == [6, 3, 0]


def test_sparse_rows_repeat_the_decode_rows() -> None:
    """Row ranges are 0 to the row's length; tables and indices are the rows'."""
    builder = SparseIndexerMetadataBuilder(
        SPEC, rows=DecodeRows.VARLEN, decode_query_len=2, sparse_block_kv=16
    )
    metadata = builder.build(0, padded_batch())
    assert isinstance(metadata, DeepseekV41SparseIndexerMetadata)
    assert metadata.sparse_block_kv == 16
    rows = metadata.sparse_decode
    assert rows is not None
    assert rows.row_ks.tolist() == [0] * 6
    assert rows.row_ke.tolist() == [5, 6, 2, 3, 0, 0]
    assert rows.row_indices.tolist() == [0, 0, 1, 1, 3, 4]
    assert rows.block_table.tolist() == metadata.decode.block_table.tolist()


@pytest.mark.parametrize(
    ("decode_query_len", "rows"),
    [
        (1, DecodeRows.PER_REQUEST),
        (2, DecodeRows.PER_REQUEST),
        (3, DecodeRows.PER_TOKEN),
        (4, DecodeRows.PER_REQUEST),
        (5, DecodeRows.PER_TOKEN),
    ],
)
def test_hopper_takes_query_lengths_1_2_and_4(
    decode_query_len: int, rows: DecodeRows
) -> None:
    """Every other query length is flattened."""
    assert hopper_rows(decode_query_len) is rows


def test_sparse_rows_need_varlen_rows() -> None:
    """The error names the layout."""
    with pytest.raises(ValueError, match=r"rows=DecodeRows\.PER_REQUEST"):
        SparseIndexerMetadataBuilder(
            SPEC, rows=DecodeRows.PER_REQUEST, sparse_block_kv=16
        )


def test_prefill_row_is_refused() -> None:
    """Two query tokens are a prefill where decodes have one."""
    builder = SparseIndexerMetadataBuilder(SPEC, rows=DecodeRows.VARLEN)
    with pytest.raises(ValueError, match=r"query_lens=\[2, 2, 0\]"):
        builder.build(0, padded_batch())
