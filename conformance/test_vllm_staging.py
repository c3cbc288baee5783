"""Staged inputs are what vLLM's own kernels make of the same requests.

Collected only for subjects of vLLM, whose process has it set up.
"""

import pytest
import torch
from hypothesis import given, settings

from graphparity.conformance.decode_batches import DecodeBatch, decode_batches
from graphparity.conformance.staging import StagedStep, stage
from graphparity.conformance.subjects.registry import load_subject
from graphparity.conformance.subjects.subject import Subject
from graphparity.fastpath.step_inputs import NULL_BLOCK_ID

pytestmark = pytest.mark.emulated_recorder_only


def test_staged_tables_and_slots_are_the_runner_s(shortest_subject: str) -> None:
    """``gather_block_tables`` and ``compute_slot_mappings`` of the real
    ``BlockTables``, told the same blocks, give the staged live columns, null rows
    and slots.
    """
    subject = load_subject(shortest_subject)
    key = next(
        k for k in subject.graph_keys if 2 < k.num_reqs < k.num_reqs_after_padding
    )

    @settings(max_examples=5)
    @given(batch=decode_batches(subject.limits, key))
    def check(batch: DecodeBatch) -> None:
        staged = stage(subject, batch)
        expected_tables = [table.clone() for table in staged.block_tables]
        expected_slots = staged.slot_mappings.clone()
        _append_block_ids(subject, batch, expected_tables)
        gathered = subject.block_tables.gather_block_tables(
            staged.input_batch.idx_mapping, key.num_reqs_after_padding
        )
        _assert_live_columns_equal(subject, batch, gathered, expected_tables)
        assert torch.equal(_slots(subject, staged), expected_slots)

    check()


def _append_block_ids(
    subject: Subject, batch: DecodeBatch, tables: list[torch.Tensor]
) -> None:
    """Tell the runner's tables the blocks of every request's staged row."""
    for row, req_index in enumerate(batch.req_state_indices):
        used = _used_columns(subject, batch.seq_lens[row], tables)
        block_ids = tuple(
            table[row, :columns].tolist()
            for table, columns in zip(tables, used, strict=True)
        )
        subject.block_tables.append_block_ids(req_index, block_ids, overwrite=True)
    subject.block_tables.apply_staged_writes()


def _used_columns(
    subject: Subject, seq_len: int, tables: list[torch.Tensor]
) -> list[int]:
    sizes = subject.block_tables.block_sizes
    return [
        min(-(-seq_len // size), table.shape[1])
        for size, table in zip(sizes, tables, strict=True)
    ]


def _assert_live_columns_equal(
    subject: Subject,
    batch: DecodeBatch,
    gathered: tuple[torch.Tensor, ...],
    staged: list[torch.Tensor],
) -> None:
    for row in range(batch.key.num_reqs_after_padding):
        if row >= batch.key.num_reqs:
            assert all(bool((table[row] == NULL_BLOCK_ID).all()) for table in gathered)
            assert all(bool((table[row] == NULL_BLOCK_ID).all()) for table in staged)
            continue
        used = _used_columns(subject, batch.seq_lens[row], staged)
        for actual, expected, columns in zip(gathered, staged, used, strict=True):
            assert torch.equal(actual[row, :columns], expected[row, :columns])


def _slots(subject: Subject, staged: StagedStep) -> torch.Tensor:
    batch = staged.input_batch
    slots: torch.Tensor = subject.block_tables.compute_slot_mappings(
        batch.idx_mapping,
        batch.query_start_loc[: batch.num_reqs + 1],
        batch.positions,
        batch.num_tokens_after_padding,
    )
    return slots
