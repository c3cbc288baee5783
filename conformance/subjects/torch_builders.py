"""Two metadata builders in plain torch operations: a compressor ring and a window.

Each writes buffers of its own, in place and without reading a device value on the
host, so its build can be recorded. They need no vLLM and no Triton.
"""

import torch

from graphparity.reference.block_table import PAD_SLOT_ID
from graphparity.reference.compressor import CompressorMetadata
from graphparity.reference.input_batch import InputBatch
from graphparity.reference.sliding_window import DeepseekSparseSWAMetadata


class TorchCompressorBuilder:
    """Ring slots and the token-to-request map (device buffers)."""

    def __init__(
        self, capacity: int, max_num_tokens: int, device: torch.device
    ) -> None:
        self.capacity = capacity
        self.token_to_req_indices = torch.zeros(
            max_num_tokens, dtype=torch.int32, device=device
        )
        self.slot_mapping_buffer = torch.zeros(
            max_num_tokens, dtype=torch.int64, device=device
        )
        self.token_range = torch.arange(max_num_tokens, device=device)

    def build(
        self, batch: InputBatch, num_tokens: int, block_table: torch.Tensor
    ) -> CompressorMetadata:
        """Fill the buffers for the first ``num_tokens`` tokens of ``batch``."""
        tokens = self.token_range[:num_tokens]
        req_of_token = _request_of_token(batch, tokens)
        self.token_to_req_indices[:num_tokens] = req_of_token
        blocks = block_table[req_of_token, 0].long()
        slots = blocks * self.capacity + batch.positions[:num_tokens] % self.capacity
        self.slot_mapping_buffer[:num_tokens] = torch.where(
            blocks != 0, slots, PAD_SLOT_ID
        )
        return CompressorMetadata(
            slot_mapping=self.slot_mapping_buffer[:num_tokens],
            query_start_loc=batch.query_start_loc,
            token_to_req_indices=self.token_to_req_indices[:num_tokens],
        )


def _request_of_token(batch: InputBatch, tokens: torch.Tensor) -> torch.Tensor:
    """[num_tokens] int64, device; padding tokens map to request 0."""
    req_of_token = torch.bucketize(tokens, batch.query_start_loc[1:].long(), right=True)
    if tokens.numel() > batch.num_tokens:
        req_of_token[batch.num_tokens :] = 0
    return req_of_token


class TorchSlidingWindowBuilder:
    """The slots that each token's window reads (device buffers)."""

    def __init__(
        self, window: int, block_size: int, max_num_tokens: int, device: torch.device
    ) -> None:
        self.window = window
        self.block_size = block_size
        self.decode_swa_indices = torch.zeros(
            (max_num_tokens, 1, window), dtype=torch.int32, device=device
        )
        self.decode_swa_lens = torch.zeros(
            max_num_tokens, dtype=torch.int32, device=device
        )
        self.is_valid_token = torch.zeros(
            max_num_tokens, dtype=torch.bool, device=device
        )
        self.token_to_req_indices = torch.zeros(
            max_num_tokens, dtype=torch.int32, device=device
        )
        self.window_range = torch.arange(window, device=device)
        self.token_range = torch.arange(max_num_tokens, device=device)
        self.no_replay_start = torch.zeros(
            max_num_tokens, dtype=torch.int32, device=device
        )

    def build(
        self,
        batch: InputBatch,
        block_table: torch.Tensor,
        slot_mapping: torch.Tensor,
        token_to_req_indices: torch.Tensor | None,
        replay_start: torch.Tensor | None,
    ) -> DeepseekSparseSWAMetadata:
        """Fill the buffers for every token of ``slot_mapping``; the map is its own if
        no builder made one before.
        """
        num_tokens = slot_mapping.numel()
        if token_to_req_indices is None:
            token_to_req_indices = self.token_to_req_indices[:num_tokens]
            tokens = self.token_range[:num_tokens]
            token_to_req_indices.copy_(_request_of_token(batch, tokens))
        valid = self.is_valid_token[:num_tokens]
        torch.ge(slot_mapping, 0, out=valid)
        starts = self.no_replay_start if replay_start is None else replay_start
        self._fill_windows(batch, block_table, token_to_req_indices, valid, starts)
        num_reqs = block_table.shape[0]
        query_len = int(batch.num_scheduled_tokens[0])
        return DeepseekSparseSWAMetadata(
            block_table=block_table,
            slot_mapping=slot_mapping,
            block_size=self.block_size,
            seq_lens=batch.seq_lens,
            query_start_loc=batch.query_start_loc,
            query_start_loc_cpu=torch.from_numpy(batch.query_start_loc_np),
            is_valid_token=valid,
            token_to_req_indices=token_to_req_indices,
            decode_swa_indices=self.decode_swa_indices[:num_tokens],
            decode_swa_lens=self.decode_swa_lens[:num_tokens],
            decode_swa_width=self.window,
            replay_start=starts,
            num_decodes=num_reqs,
            num_prefills=0,
            num_decode_tokens=num_tokens,
            num_prefill_tokens=0,
            max_decode_query_len=query_len,
        )

    def _fill_windows(
        self,
        batch: InputBatch,
        block_table: torch.Tensor,
        token_to_req_indices: torch.Tensor,
        valid: torch.Tensor,
        starts: torch.Tensor,
    ) -> None:
        reqs = token_to_req_indices.long()
        num_tokens = reqs.numel()
        query_ends = batch.query_start_loc[1:][reqs].long()
        last = batch.seq_lens[reqs] - query_ends + self.token_range[:num_tokens]
        first = (last - self.window + 1).clamp(min=0)
        # Padding tokens map to request 0, so an unpadded replay_start serves them.
        first = torch.maximum(first, starts[reqs].long())
        positions = first[:, None] + self.window_range
        inside = (positions <= last[:, None]) & valid[:, None]
        columns = (positions // self.block_size).clamp(0, block_table.shape[1] - 1)
        blocks = block_table[reqs[:, None], columns].long()
        slots = blocks * self.block_size + positions % self.block_size
        self.decode_swa_indices[:num_tokens, 0] = torch.where(inside, slots, -1)
        self.decode_swa_lens[:num_tokens] = inside.sum(dim=1)
        self.decode_swa_lens[num_tokens:] = 0
