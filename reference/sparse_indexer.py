"""The sparse-indexer group's metadata: rows that score the compressed context.

Place: the third of the four groups. From vLLM's
``v1/attention/backends/mla/{indexer,sparse_indexer}.py`` and
``v1/attention/ops/metadata.py``, without context parallelism. Left out: prefill
chunks, the DeepGEMM schedule, the scratch a forward fills.
Invariant: what a row is depends on the kernel, so ``DecodeRows`` names it; each
row sees ``context // tokens_per_state`` states.
"""

import dataclasses
from enum import Enum

import torch

from graphparity.reference.padding import Padding, declared


class DecodeRows(Enum):
    """What one row of the paged MQA logits kernel is."""

    VARLEN = "varlen"
    """A token, with the index of its request: Blackwell."""
    PER_TOKEN = "per_token"
    """A token, flattened: Hopper, query lengths its kernel does not take."""
    PER_REQUEST = "per_request"
    """A request with all its query tokens: Hopper, query lengths 1, 2 and 4."""


def hopper_rows(decode_query_len: int) -> DecodeRows:
    """The rows Hopper's kernel takes (vLLM ``native_next_n_supported``)."""
    if decode_query_len in (1, 2, 4):
        return DecodeRows.PER_REQUEST
    return DecodeRows.PER_TOKEN


@dataclasses.dataclass
class DeepSeekV32IndexerDecodeMetadata:
    """Decode rows, one a request; all tensors are int32 and on the device."""

    # [num_rows, max_num_blocks] block ids
    block_table: torch.Tensor = dataclasses.field(
        metadata=declared(Padding.SENTINEL, "num_reqs")
    )
    # [num_rows, query_len], or [num_rows, 1] where a row is a token; 0 past the
    # live rows, and never negative
    seq_lens: torch.Tensor = dataclasses.field(
        metadata=declared(Padding.SENTINEL, "num_reqs")
    )
    # [num_rows] query tokens of the row, 0 in padded requests
    decode_lens: torch.Tensor = dataclasses.field(
        metadata=declared(Padding.SENTINEL, "num_reqs")
    )
    requires_padding: bool
    # [num_reqs] query tokens, 0 in padded requests
    per_req_decode_lens: torch.Tensor = dataclasses.field(
        metadata=declared(Padding.SENTINEL, "num_reqs")
    )
    decode_is_uniform: bool
    write_max_decode_len: int
    # [num_rows] the row's request, only where the kernel asks for it
    indices: torch.Tensor | None = None


@dataclasses.dataclass
class PerTokenDecodeMetadata(DeepSeekV32IndexerDecodeMetadata):
    """Decode rows, one a token; padding rows are of length 0 and keep stale block ids,
    but for column 0, which is 0.
    """

    block_table: torch.Tensor = dataclasses.field(
        metadata=declared(Padding.UNSPECIFIED)
    )
    seq_lens: torch.Tensor = dataclasses.field(metadata=declared(Padding.SENTINEL))
    # 1 in every row, padding among them
    decode_lens: torch.Tensor = dataclasses.field(metadata=declared(Padding.SENTINEL))


@dataclasses.dataclass
class VarlenDecodeMetadata(PerTokenDecodeMetadata):
    """Decode rows, one a token, with request indices; padding rows are zeroed."""

    block_table: torch.Tensor = dataclasses.field(metadata=declared(Padding.SENTINEL))
    # padding row t of n real tokens: num_reqs + t - n, past every request
    indices: torch.Tensor | None = dataclasses.field(
        default=None, metadata=declared(Padding.SENTINEL)
    )


@dataclasses.dataclass
class SparseMQARowsMetadata:
    """Rows of the sparse-logits call; all tensors are int32 and on the device."""

    # [num_rows] all 0
    row_ks: torch.Tensor = dataclasses.field(metadata=declared(Padding.SENTINEL))
    # [num_rows] states the row sees, 0 in padding rows
    row_ke: torch.Tensor = dataclasses.field(metadata=declared(Padding.SENTINEL))
    # [num_rows, max_num_blocks] block ids
    block_table: torch.Tensor = dataclasses.field(metadata=declared(Padding.SENTINEL))
    # [num_rows] the row's request
    row_indices: torch.Tensor = dataclasses.field(metadata=declared(Padding.SENTINEL))


@dataclasses.dataclass
class DeepseekV32IndexerMetadata:
    """Indexer metadata of one decode step; all tensors lie on the device."""

    # [num_reqs] int32, uncompressed, 0 in the padded rows
    seq_lens: torch.Tensor = dataclasses.field(
        metadata=declared(Padding.SENTINEL, "num_reqs")
    )
    # a host bound on seq_lens
    max_seq_len: int
    # [num_tokens] int64, -1 past the real tokens
    slot_mapping: torch.Tensor = dataclasses.field(metadata=declared(Padding.SENTINEL))

    num_decodes: int
    num_decode_tokens: int
    num_prefills: int
    num_prefill_tokens: int

    decode: DeepSeekV32IndexerDecodeMetadata
    # [num_reqs, max_num_blocks] int32
    block_table: torch.Tensor = dataclasses.field(
        metadata=declared(Padding.SENTINEL, "num_reqs")
    )


@dataclasses.dataclass
class DeepseekV41SparseIndexerMetadata(DeepseekV32IndexerMetadata):
    """Indexer metadata with the rows of the sparse-logits call."""

    sparse_block_kv: int = 0
    sparse_decode: SparseMQARowsMetadata | None = None
