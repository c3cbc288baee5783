"""The inputs of one step, written as the runner leaves them for ``prepare_attn``.

Follows vLLM's ``GPUModelRunner.prepare_inputs`` and ``prepare_attn``
(``v1/worker/gpu/model_runner.py``) for the buffers that a metadata build reads,
written from the host in one go. Rows and columns that the runner leaves alone
hold leftovers of earlier steps, drawn from the step's seed. It overwrites live
buffers and tables: only while recording or testing, never while serving.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from graphparity.fastpath.runtime_batch import RunnerBuffers, StepRows, runtime_batch

PAD_SLOT_ID = -1
NULL_BLOCK_ID = 0
UNASSIGNED_SHARE = 0.1
"""Of the stale block-table entries, those that no block was ever assigned to."""

RINGLESS_SHARE = 0.25
"""Of the live requests, those that hold no ring block."""


@dataclass(frozen=True)
class StepInputs:
    """What the runner hands ``prepare_attn`` for one step."""

    input_batch: Any
    block_tables: tuple[torch.Tensor, ...]
    slot_mappings: torch.Tensor


def write_step_inputs(runner: RunnerBuffers, rows: StepRows) -> StepInputs:
    """Write the step's inputs to the runner's buffers (device)."""
    rng = np.random.default_rng(rows.seed)
    _write_input_buffers(runner, rows, rng)
    block_ids = _write_block_tables(runner, rows, rng)
    _write_slot_mappings(runner, rows, block_ids)
    tables = runner.block_tables
    return StepInputs(
        input_batch=runtime_batch(runner, rows),
        block_tables=tuple(t[: rows.padded_reqs] for t in tables.input_block_tables),
        slot_mappings=tables.slot_mappings[:, : rows.padded_tokens],
    )


def _fill(tensor: torch.Tensor, values: npt.NDArray[Any]) -> None:
    tensor.copy_(torch.from_numpy(np.ascontiguousarray(values)))


def _write_input_buffers(
    runner: RunnerBuffers, rows: StepRows, rng: np.random.Generator
) -> None:
    """Live rows, the runner's padding, and stale positions past the real tokens."""
    buffers = runner.input_buffers
    starts = np.full(buffers.max_num_reqs + 1, rows.num_tokens, dtype=np.int32)
    starts[: rows.num_reqs + 1] = rows.query_start_loc[: rows.num_reqs + 1]
    seq_lens = np.zeros(buffers.max_num_reqs, dtype=np.int32)
    seq_lens[: rows.num_reqs] = rows.seq_lens
    positions = rng.integers(0, runner.max_model_len, size=buffers.max_num_tokens)
    positions[: rows.num_tokens] = rows.positions
    _fill(buffers.query_start_loc, starts)
    _fill(buffers.seq_lens, seq_lens)
    _fill(buffers.positions, positions)
    _fill(buffers.input_ids, rng.integers(0, 100, size=buffers.max_num_tokens))
    _fill(buffers.is_padding, np.arange(buffers.max_num_tokens) >= rows.num_tokens)


def _write_block_tables(
    runner: RunnerBuffers, rows: StepRows, rng: np.random.Generator
) -> dict[int, npt.NDArray[np.int32]]:
    """Distinct blocks in the live columns of the live rows, the null block in
    padded rows, leftovers elsewhere; -1 stands for an entry never assigned. By group.
    """
    block_ids = {}
    tables = zip(
        runner.block_tables.input_block_tables,
        runner.block_tables.block_sizes,
        strict=True,
    )
    for group, (table, block_size) in enumerate(tables):
        if not runner.is_staged(group):
            continue
        num_rows, width = table.shape
        stale = rng.integers(
            0, runner.num_blocks, size=(num_rows, width), dtype=np.int32
        )
        stale[rng.random(stale.shape) < UNASSIGNED_SHARE] = -1
        stale[rows.num_reqs : rows.padded_reqs] = NULL_BLOCK_ID
        ids = _distinct_block_ids(rng, runner.num_blocks, rows.num_reqs * width)
        ids = ids.reshape(rows.num_reqs, width)
        used = -(-np.asarray(rows.seq_lens) // block_size)
        live = np.arange(width) < used[:, None]
        stale[: rows.num_reqs][live] = ids[live]
        if width == 1:  # a ring: a request may hold none, which is the null block
            ringless = rng.random(rows.num_reqs) < RINGLESS_SHARE
            stale[: rows.num_reqs][ringless] = NULL_BLOCK_ID
        _fill(table, stale)
        block_ids[group] = stale
    return block_ids


def _write_slot_mappings(
    runner: RunnerBuffers, rows: StepRows, block_ids: dict[int, npt.NDArray[np.int32]]
) -> None:
    """The slot of every token in each group that has slots; the pad id elsewhere."""
    req_of_token = np.repeat(np.arange(rows.num_reqs), rows.query_lens)
    slots = np.full(tuple(runner.block_tables.slot_mappings.shape), PAD_SLOT_ID)
    enabled = runner.block_tables.slot_mapping_enabled
    for group, block_size in enumerate(runner.block_tables.block_sizes):
        if group in block_ids and bool(enabled[group]):
            blocks = block_ids[group][req_of_token, rows.positions // block_size]
            slots[group, : rows.num_tokens] = (
                blocks * block_size + rows.positions % block_size
            )
    _fill(runner.block_tables.slot_mappings, slots)


def _distinct_block_ids(
    rng: np.random.Generator, num_blocks: int, count: int
) -> npt.NDArray[np.int64]:
    """Ids above the null block's, distinct as far as there are blocks, in random order
    from a random first one: the cost does not follow the size of the cache.
    """
    num_usable = num_blocks - 1
    first = rng.integers(num_usable)
    return 1 + (first + rng.permutation(count)) % num_usable
