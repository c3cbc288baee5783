"""The runner's block tables: a request's blocks, and a batch's rows and slots.

Place: the runner stages block ids here; each step it gathers the batch's rows
and computes the slots that ``prepare_attn`` is given. From vLLM's
``v1/worker/gpu/block_table.py``, without context parallelism.
Invariant: ``input_block_tables`` and ``slot_mappings`` keep their storage for
life, since graphs read them, and are written only by the methods below. Of a
live row only the request's own columns are written: later ones stay stale.
"""

import copy

import torch

PAD_SLOT_ID = -1
"""Slot of a token that is not stored."""


class BlockTables:
    """Block tables of ``num_kv_cache_groups`` groups; host lists, device outputs.

    ``input_block_tables``: a group each, ``[max_num_reqs, max_num_blocks]`` int32.
    ``slot_mappings``: ``[num_kv_cache_groups, max_num_batched_tokens]`` int64.
    ``num_blocks[group][req_index]``: blocks the request owns, as applied.

    Raises:
        ValueError: ``cp_size`` is not 1, or an argument does not name every group.
    """

    redirect_writes_to_null_block = False

    def __init__(  # vLLM's signature
        self,
        block_sizes: list[int],
        max_num_reqs: int,
        max_num_batched_tokens: int,
        max_num_blocks_per_group: list[int],
        device: torch.device,
        cp_size: int = 1,
        cp_rank: int = 0,
        cp_interleave: int = 1,
        slot_mapping_enabled: list[bool] | None = None,
        dcp_sharded: list[bool] | None = None,
        sliding_window_reach: list[int] | None = None,
    ) -> None:
        if cp_size != 1:
            raise ValueError(
                f"cp_size={cp_size} is context parallelism, which the reference "
                "does not model: use cp_size=1."
            )
        num_groups = len(block_sizes)
        self.block_sizes = block_sizes
        self.max_num_reqs = max_num_reqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.device = device
        self.num_kv_cache_groups = num_groups
        self.slot_mapping_enabled = slot_mapping_enabled or [True] * num_groups
        self.sliding_window_reach = sliding_window_reach or [0] * num_groups
        for name, values in (
            ("max_num_blocks_per_group", max_num_blocks_per_group),
            ("slot_mapping_enabled", self.slot_mapping_enabled),
            ("sliding_window_reach", self.sliding_window_reach),
        ):
            if len(values) != num_groups:
                raise ValueError(
                    f"{name} has {len(values)} entries for {num_groups} groups: "
                    "give one a group."
                )
        # [group][req_index][column], as staged on the host and as applied.
        self._staged_block_ids = [
            [[0] * width for _ in range(max_num_reqs)]
            for width in max_num_blocks_per_group
        ]
        self._staged_num_blocks = [[0] * max_num_reqs for _ in range(num_groups)]
        self.block_ids = copy.deepcopy(self._staged_block_ids)
        self.num_blocks = copy.deepcopy(self._staged_num_blocks)
        self.input_block_tables = [
            torch.zeros(max_num_reqs, width, dtype=torch.int32, device=device)
            for width in max_num_blocks_per_group
        ]
        self.slot_mappings = torch.zeros(
            num_groups, max_num_batched_tokens, dtype=torch.int64, device=device
        )
        self._num_dirty_rows = 0

    def append_block_ids(
        self, req_index: int, new_block_ids: tuple[list[int], ...], overwrite: bool
    ) -> None:
        """Stage a request's new blocks, one list a group.

        Raises:
            RuntimeError: the row has too few columns (vLLM raises the same type).
        """
        for group in range(self.num_kv_cache_groups):
            row = self._staged_block_ids[group][req_index]
            start = 0 if overwrite else self._staged_num_blocks[group][req_index]
            end = start + len(new_block_ids[group])
            if end > len(row):
                raise RuntimeError(
                    f"request {req_index} needs {end} blocks in group {group}, whose "
                    f"rows hold {len(row)}: raise max_num_blocks_per_group."
                )
            for column, block_id in enumerate(new_block_ids[group], start):
                row[column] = 0 if self.redirect_writes_to_null_block else block_id
            self._staged_num_blocks[group][req_index] = end

    def apply_staged_writes(self) -> None:
        """Make staged block ids and counts what later steps read."""
        self.block_ids = copy.deepcopy(self._staged_block_ids)
        self.num_blocks = copy.deepcopy(self._staged_num_blocks)

    def gather_block_tables(
        self,
        idx_mapping: torch.Tensor,
        num_reqs_padded: int,
        out: tuple[torch.Tensor, ...] | None = None,
        out_ptrs: torch.Tensor | None = None,
        num_computed_tokens: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, ...]:
        """Gather the batch's rows; views ``[num_reqs_padded, max_num_blocks]``.

        Padded rows, and rows a larger batch left, are zeroed. Given
        ``num_computed_tokens`` (``[max_num_reqs]``), a sliding-window group's
        columns wholly below the window become the null block 0. ``out`` replaces
        ``input_block_tables``; ``out_ptrs`` is vLLM's and unread.
        """
        req_indices = idx_mapping.tolist()
        num_rows = num_reqs_padded
        if out is None:
            num_rows = max(num_rows, self._num_dirty_rows)
            self._num_dirty_rows = len(req_indices)
        tables = tuple(self.input_block_tables) if out is None else out
        for group, table in enumerate(tables):
            for row in range(len(req_indices), num_rows):
                table[row] = 0
            for row, req_index in enumerate(req_indices):
                num_null = self._num_null(group, req_index, num_computed_tokens)
                for column in range(self.num_blocks[group][req_index]):
                    block_id = self.block_ids[group][req_index][column]
                    table[row, column] = 0 if column < num_null else block_id
        return tuple(table[:num_reqs_padded] for table in tables)

    def _num_null(
        self, group: int, req_index: int, num_computed_tokens: torch.Tensor | None
    ) -> int:
        reach = self.sliding_window_reach[group]
        if num_computed_tokens is None or reach == 0:
            return 0
        first_position = int(num_computed_tokens[req_index])
        return max(first_position - reach, 0) // self.block_sizes[group]

    def get_dummy_block_tables(self, num_reqs: int) -> tuple[torch.Tensor, ...]:
        """Zeroed rows for a dummy step; views ``[num_reqs, max_num_blocks]``."""
        for table in self.input_block_tables:
            table[: max(num_reqs, self._num_dirty_rows)] = 0
        self._num_dirty_rows = num_reqs
        return tuple(table[:num_reqs] for table in self.input_block_tables)

    def compute_slot_mappings(
        self,
        idx_mapping: torch.Tensor,
        query_start_loc: torch.Tensor,
        positions: torch.Tensor,
        num_tokens_padded: int,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Each token's slot, a view ``[num_groups, num_tokens_padded]`` int64.

        ``slot = block * block_size + position % block_size``. -1 for a group
        without slot mapping, for requests mapped to -1, and for every token past
        the last real one, to the end of the buffer.
        """
        slot_mappings = self.slot_mappings if out is None else out
        req_indices = idx_mapping.tolist()
        starts = query_start_loc.tolist()
        for group in range(self.num_kv_cache_groups):
            for row, req_index in enumerate(req_indices):
                for token in range(starts[row], starts[row + 1]):
                    slot = self._slot(group, req_index, int(positions[token]))
                    slot_mappings[group, token] = slot
            slot_mappings[group, starts[len(req_indices)] :] = PAD_SLOT_ID
        return slot_mappings[:, :num_tokens_padded]

    def _slot(self, group: int, req_index: int, position: int) -> int:
        if req_index < 0 or not self.slot_mapping_enabled[group]:
            return PAD_SLOT_ID
        block_size = self.block_sizes[group]
        block_id = self.block_ids[group][req_index][position // block_size]
        return block_id * block_size + position % block_size

    def get_dummy_slot_mappings(self, num_tokens: int) -> torch.Tensor:
        """All -1, a view ``[num_groups, num_tokens]``; the whole buffer is filled."""
        self.slot_mappings[:] = PAD_SLOT_ID
        return self.slot_mappings[:, :num_tokens]
