"""Two small builders for trying ``graphparity explain``: a sound one, and one that is
wrong in a common way.
"""

from dataclasses import dataclass
from typing import Any

import torch

BLOCK_SIZE = 8
MAX_NUM_REQS = 1024


@dataclass
class BlockCounts:
    """Of each request the KV cache blocks in use."""

    block_counts: torch.Tensor  # [num_reqs] int32, device


class Sound:
    """Counts blocks into one persistent buffer, and zeros what is past the rows."""

    def __init__(self, device: torch.device) -> None:
        self.block_counts = torch.zeros(MAX_NUM_REQS, dtype=torch.int32, device=device)

    def build(self, common_prefix_len: int, common_attn_metadata: Any) -> BlockCounts:
        """Fill the rows of the step."""
        num_reqs = common_attn_metadata.num_reqs
        rows = self.block_counts[:num_reqs]
        rows.copy_((common_attn_metadata.seq_lens + BLOCK_SIZE - 1) // BLOCK_SIZE)
        self.block_counts[num_reqs:] = 0
        return BlockCounts(rows)


class FrozenLength(Sound):
    """Takes the host's longest sequence for every request's."""

    def build(self, common_prefix_len: int, common_attn_metadata: Any) -> BlockCounts:
        """Fill the rows with a host value of the step."""
        rows = self.block_counts[: common_attn_metadata.num_reqs]
        rows.fill_(common_attn_metadata.max_seq_len // BLOCK_SIZE)
        return BlockCounts(rows)
