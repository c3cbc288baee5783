"""What a metadata builder is given, and the groups that own the builders.

Place: ``prepare_attn`` makes one ``CommonAttentionMetadata`` a KV cache group
and hands it to the builder of every ``AttentionGroup`` in it. From vLLM's
``v1/attention/backend.py`` and ``v1/worker/utils.py``.
Invariant: both dataclasses have vLLM's fields, order and defaults; a build reads
its arguments, writes only what its documentation names, and returns new tensors.
"""

import dataclasses
import itertools
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from graphparity.reference.kv_cache_interface import (
    CircularBufferSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
)

__all__ = [
    "AttentionGroup",
    "AttentionMetadataBuilder",
    "CircularBufferSpec",
    "CommonAttentionMetadata",
    "KVCacheConfig",
    "KVCacheGroupSpec",
    "KVCacheSpec",
    "MLAAttentionSpec",
    "SlidingWindowMLASpec",
]


@dataclasses.dataclass
class CommonAttentionMetadata:
    """One step's batch as a builder sees it; in FULL steps sizes are padded."""

    # [num_reqs + 1] device and host
    query_start_loc: torch.Tensor
    query_start_loc_cpu: torch.Tensor
    # [num_reqs] int32
    seq_lens: torch.Tensor

    num_reqs: int
    num_actual_tokens: int
    max_query_len: int
    max_seq_len: int

    # [num_reqs, max_num_blocks] int32 and [num_tokens] int64
    block_table_tensor: torch.Tensor
    slot_mapping: torch.Tensor

    causal: bool | torch.Tensor = True

    logits_indices_padded: torch.Tensor | None = None
    num_logits_indices: int | None = None
    max_logits_per_req: int | None = None

    encoder_seq_lens: torch.Tensor | None = None
    encoder_seq_lens_cpu: npt.NDArray[Any] | None = None

    dcp_local_seq_lens: torch.Tensor | None = None
    dcp_local_seq_lens_cpu_upper_bound: torch.Tensor | None = None

    # [num_tokens] int64
    positions: torch.Tensor | None = None
    # [num_reqs] host
    is_prefilling: torch.Tensor | None = None
    seq_lens_cpu_upper_bound: torch.Tensor | None = None
    req_idx: npt.NDArray[np.intp] | None = None

    mm_req_doc_ranges: dict[int, list[tuple[int, int]]] | None = None
    rswa_prefix_lens: torch.Tensor | None = None
    replayssm_decode_base_cpu: torch.Tensor | None = None

    _num_computed_tokens_cache: torch.Tensor | None = None
    _token_to_req_indices_cache: torch.Tensor | None = None

    def token_to_req_indices(self) -> torch.Tensor:
        """Map each token to its request: ``[num_actual_tokens]`` int32, device.

        Token ``t`` belongs to the first request that ends after ``t``. Tokens at
        or past the host's ``query_start_loc_cpu[-1]`` are padding and map to
        request 0 (vLLM ``v1/attention/ops/metadata.py``). Made once a step: the
        groups share it.
        """
        if self._token_to_req_indices_cache is None:
            ends = self.query_start_loc.tolist()[1:]
            num_mapped = int(self.query_start_loc_cpu[-1])
            indices = [0] * self.num_actual_tokens
            for token in range(min(num_mapped, self.num_actual_tokens)):
                indices[token] = _request_of(token, ends)
            self._token_to_req_indices_cache = torch.tensor(
                indices, dtype=torch.int32, device=self.query_start_loc.device
            )
        return self._token_to_req_indices_cache[: self.num_actual_tokens]


def _request_of(token: int, ends: list[int]) -> int:
    for req, end in enumerate(ends):
        if token < end:
            return req
    return len(ends) - 1


def uniform_query_len(
    common_attn_metadata: CommonAttentionMetadata, decode_query_len: int
) -> int:
    """The query length all live requests share, in tokens; padded ones have 0.

    Raises:
        ValueError: the query lengths differ, or exceed ``decode_query_len``, the
            longest query a step treats as a decode.
    """
    starts = common_attn_metadata.query_start_loc_cpu.tolist()
    query_lens = [end - start for start, end in itertools.pairwise(starts)]
    live = sorted({query_len for query_len in query_lens if query_len > 0})
    if len(live) != 1 or live[0] > decode_query_len:
        raise ValueError(
            f"query_lens={query_lens} are not a uniform decode batch of at most "
            f"decode_query_len={decode_query_len} tokens a request: build prefill "
            "and mixed steps elsewhere."
        )
    return int(live[0])


class AttentionMetadataBuilder(ABC):
    """Builds one attention group's metadata."""

    @abstractmethod
    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> object:
        """The group's metadata for one step; every tensor made is new."""

    def build_for_cudagraph_capture(
        self, common_attn_metadata: CommonAttentionMetadata
    ) -> object:
        """The metadata a FULL graph is captured with: an ordinary build."""
        return self.build(0, common_attn_metadata)


@dataclasses.dataclass
class AttentionGroup:
    """Layers of one KV cache group that share a backend and its metadata."""

    backend: type[Any]
    layer_names: list[str]
    kv_cache_spec: KVCacheSpec
    kv_cache_group_id: int
    kernel_block_size: int | None = None
    kernel_block_stride: int = 0
    kernel_block_table: torch.Tensor | None = None
    kernel_block_offsets: torch.Tensor | None = None
    metadata_builders: list[AttentionMetadataBuilder] = dataclasses.field(
        default_factory=list
    )

    def get_metadata_builder(self, ubatch_idx: int = 0) -> AttentionMetadataBuilder:
        """The builder of one micro-batch."""
        return self.metadata_builders[ubatch_idx]

    def map_to_kernel_block_table(self, block_table: torch.Tensor) -> torch.Tensor:
        """The table in the backend's smaller blocks; unchanged without them.

        ``[num_reqs, max_num_blocks]`` int32 becomes ``[num_reqs, max_num_blocks *
        n]`` with ``n`` kernel blocks a block: kernel block ``j`` of block ``b`` is
        ``b * stride + j``. The builder's spec counts kernel blocks then.
        """
        if self.kernel_block_size is None:
            return block_table
        per_block = self.kv_cache_spec.block_size // self.kernel_block_size
        stride = self.kernel_block_stride or per_block
        rows = [
            [block * stride + j for block in row for j in range(per_block)]
            for row in block_table.tolist()
        ]
        return torch.tensor(rows, dtype=torch.int32, device=block_table.device)
