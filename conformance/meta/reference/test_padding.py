"""Padding declarations of the metadata classes."""

import dataclasses

import pytest

from graphparity.reference.compressor import CompressorMetadata
from graphparity.reference.padding import Padding, live_of, padding_of
from graphparity.reference.sliding_window import DeepseekSparseSWAMetadata
from graphparity.reference.sparse_indexer import (
    DeepSeekV32IndexerDecodeMetadata,
    DeepseekV32IndexerMetadata,
    DeepseekV41SparseIndexerMetadata,
    PerTokenDecodeMetadata,
    SparseMQARowsMetadata,
    VarlenDecodeMetadata,
)
from graphparity.reference.sparse_mla import DeepseekV4FlashMLAMetadata

METADATA = [
    CompressorMetadata,
    DeepseekSparseSWAMetadata,
    DeepseekV32IndexerMetadata,
    DeepSeekV32IndexerDecodeMetadata,
    PerTokenDecodeMetadata,
    VarlenDecodeMetadata,
    DeepseekV41SparseIndexerMetadata,
    SparseMQARowsMetadata,
    DeepseekV4FlashMLAMetadata,
]


@pytest.mark.parametrize("metadata", METADATA)
def test_every_tensor_field_declares_its_padding(metadata: type) -> None:
    """Host values and nested metadata declare nothing; every tensor does."""
    for field in dataclasses.fields(metadata):
        is_tensor = "Tensor" in str(field.type)
        is_native_indices = (
            metadata in (DeepSeekV32IndexerDecodeMetadata, PerTokenDecodeMetadata)
            and field.name == "indices"
        )
        expected = is_tensor and not is_native_indices
        assert (padding_of(field) is not None) == expected, field.name
        assert (live_of(field) is not None) == expected, field.name


def test_rows_of_tokens_override_the_live_count() -> None:
    """The same field counts requests natively and tokens where it is flattened."""
    natives = {f.name: f for f in dataclasses.fields(DeepSeekV32IndexerDecodeMetadata)}
    tokens = {f.name: f for f in dataclasses.fields(PerTokenDecodeMetadata)}
    assert live_of(natives["seq_lens"]) == "num_reqs"
    assert live_of(tokens["seq_lens"]) == "num_tokens"
    assert padding_of(tokens["block_table"]) is Padding.UNSPECIFIED
