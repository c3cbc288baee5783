"""Builds the sparse-indexer group's metadata.

Place: the builder of ``sparse_indexer``'s classes, one a layout of rows. From
vLLM's ``v1/attention/backends/mla/{indexer,sparse_indexer}.py``.
Invariant: every tensor returned is new; the runner's sequence lengths are never
divided in place.
"""

import torch

from graphparity.reference.attention import (
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
    uniform_query_len,
)
from graphparity.reference.compressed_slot_mapping import compressed_slot_mapping
from graphparity.reference.kv_cache_interface import MLAAttentionSpec
from graphparity.reference.sparse_indexer import (
    DecodeRows,
    DeepSeekV32IndexerDecodeMetadata,
    DeepseekV32IndexerMetadata,
    DeepseekV41SparseIndexerMetadata,
    PerTokenDecodeMetadata,
    SparseMQARowsMetadata,
    VarlenDecodeMetadata,
)


class SparseIndexerMetadataBuilder(AttentionMetadataBuilder):
    """Builds indexer metadata for uniform decode batches.

    ``rows`` is the kernel's layout. ``sparse_block_kv`` above 0 adds the rows of
    the sparse-logits call, in tokens a sparse block. ``decode_query_len`` is the
    longest decode query: 1 + speculative tokens.

    Raises:
        ValueError: ``sparse_block_kv`` is given and ``rows`` is not VARLEN.
    """

    def __init__(
        self,
        kv_cache_spec: MLAAttentionSpec,
        *,
        rows: DecodeRows,
        sparse_block_kv: int = 0,
        decode_query_len: int = 1,
    ) -> None:
        if sparse_block_kv > 0 and rows is not DecodeRows.VARLEN:
            raise ValueError(
                f"rows={rows} has no sparse-logits kernel: use DecodeRows.VARLEN "
                "or sparse_block_kv=0."
            )
        self.kv_cache_spec = kv_cache_spec
        self.rows = rows
        self.sparse_block_kv = sparse_block_kv
        self.decode_query_len = decode_query_len

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> DeepseekV32IndexerMetadata:
        """Lay out the rows and compress lengths and slots.

        Raises:
            ValueError: the batch is not a uniform decode batch.
        """
        common = common_attn_metadata
        query_len = uniform_query_len(common, self.decode_query_len)
        metadata = DeepseekV32IndexerMetadata(
            seq_lens=common.seq_lens.clone(),
            max_seq_len=common.max_seq_len,
            slot_mapping=self._slot_mapping(common),
            num_decodes=common.num_reqs,
            num_decode_tokens=common.num_actual_tokens,
            num_prefills=0,
            num_prefill_tokens=0,
            decode=self._decode(common, query_len),
            block_table=common.block_table_tensor.clone(),
        )
        if self.sparse_block_kv == 0:
            return metadata
        return self._with_sparse_rows(metadata)

    def _slot_mapping(self, common: CommonAttentionMetadata) -> torch.Tensor:
        if self.kv_cache_spec.tokens_per_state == 1:
            return common.slot_mapping.clone()
        return compressed_slot_mapping(
            common, common.block_table_tensor, self.kv_cache_spec
        )

    def _decode(
        self, common: CommonAttentionMetadata, query_len: int
    ) -> DeepSeekV32IndexerDecodeMetadata:
        if self.rows is DecodeRows.PER_REQUEST:
            return self._per_request(common, query_len)
        return self._per_token(common, query_len)

    def _per_request(
        self, common: CommonAttentionMetadata, query_len: int
    ) -> DeepSeekV32IndexerDecodeMetadata:
        query_lens = _query_lens(common)
        uniform = min(query_lens) == max(query_lens)
        seq_lens = [
            [self._num_states(seq_len - query_len + 1 + j) for j in range(query_len)]
            for seq_len in common.seq_lens.tolist()
        ]
        return DeepSeekV32IndexerDecodeMetadata(
            block_table=common.block_table_tensor.clone(),
            seq_lens=_int32(seq_lens, common),
            decode_lens=_int32(query_lens, common),
            requires_padding=not uniform,
            per_req_decode_lens=_int32(query_lens, common),
            decode_is_uniform=uniform,
            write_max_decode_len=query_len,
        )

    def _per_token(
        self, common: CommonAttentionMetadata, query_len: int
    ) -> PerTokenDecodeMetadata:
        starts = common.query_start_loc.tolist()
        num_live = starts[common.num_reqs]
        seq_lens = [[0]] * common.num_actual_tokens
        block_table = [[0] * common.block_table_tensor.shape[1]] * len(seq_lens)
        indices = [common.num_reqs + row - num_live for row in range(len(seq_lens))]
        for req in range(common.num_reqs):
            for token in range(starts[req], starts[req + 1]):
                context = int(common.seq_lens[req]) - (starts[req + 1] - token) + 1
                seq_lens[token] = [self._num_states(context)]
                block_table[token] = common.block_table_tensor[req].tolist()
                indices[token] = req
        query_lens = _query_lens(common)
        metadata = PerTokenDecodeMetadata(
            block_table=_int32(block_table, common),
            seq_lens=_int32(seq_lens, common),
            decode_lens=_int32([1] * len(seq_lens), common),
            requires_padding=False,
            per_req_decode_lens=_int32(query_lens, common),
            decode_is_uniform=min(query_lens) == max(query_lens),
            write_max_decode_len=query_len,
        )
        if self.rows is DecodeRows.PER_TOKEN:
            return metadata
        return VarlenDecodeMetadata(
            **{**vars(metadata), "indices": _int32(indices, common)}
        )

    def _num_states(self, context: int) -> int:
        return max(context, 0) // self.kv_cache_spec.tokens_per_state

    def _with_sparse_rows(
        self, metadata: DeepseekV32IndexerMetadata
    ) -> DeepseekV41SparseIndexerMetadata:
        decode = metadata.decode
        assert decode.indices is not None  # VARLEN rows carry them
        sparse_decode = SparseMQARowsMetadata(
            row_ks=torch.zeros_like(decode.decode_lens),
            row_ke=decode.seq_lens.flatten().clone(),
            block_table=decode.block_table.clone(),
            row_indices=decode.indices.clone(),
        )
        return DeepseekV41SparseIndexerMetadata(
            **vars(metadata),
            sparse_block_kv=self.sparse_block_kv,
            sparse_decode=sparse_decode,
        )


def _query_lens(common: CommonAttentionMetadata) -> list[int]:
    starts = common.query_start_loc.tolist()
    return [starts[req + 1] - starts[req] for req in range(common.num_reqs)]


def _int32(values: object, common: CommonAttentionMetadata) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=common.seq_lens.device)
