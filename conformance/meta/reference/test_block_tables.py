"""The runner's block tables against values computed by hand."""

import pytest
import torch

from graphparity.reference.block_table import BlockTables

CPU = torch.device("cpu")


def tables(sliding_window_reach: list[int] | None = None) -> BlockTables:
    """A ring group without slots and a group of 4-token blocks, three requests."""
    block_tables = BlockTables(
        [8, 4],
        3,
        8,
        [1, 3],
        CPU,
        slot_mapping_enabled=[False, True],
        sliding_window_reach=sliding_window_reach,
    )
    block_tables.append_block_ids(0, ([5], [7, 9]), overwrite=True)
    block_tables.append_block_ids(2, ([3], [6]), overwrite=True)
    block_tables.apply_staged_writes()
    return block_tables


def test_rows_follow_the_batch_order_and_padded_rows_are_zero() -> None:
    """Batch order is permuted against the request table's."""
    ring, table = tables().gather_block_tables(torch.tensor([2, 0]), 3)
    assert ring.tolist() == [[3], [5], [0]]
    assert table.tolist() == [[6, 0, 0], [7, 9, 0], [0, 0, 0]]


def test_columns_past_a_requests_blocks_stay_stale() -> None:
    """Row 0 first holds two blocks; the next step writes only its first column."""
    block_tables = tables()
    block_tables.gather_block_tables(torch.tensor([0]), 1)
    table = block_tables.gather_block_tables(torch.tensor([2]), 1)[1]
    assert table.tolist() == [[6, 9, 0]]


def test_rows_of_a_larger_batch_are_cleared() -> None:
    """A smaller step clears what the larger one left, past its own padding."""
    block_tables = tables()
    block_tables.gather_block_tables(torch.tensor([2, 0]), 2)
    block_tables.gather_block_tables(torch.tensor([0]), 1)
    assert block_tables.input_block_tables[1][1].tolist() == [0, 0, 0]


def test_blocks_below_the_window_become_the_null_block() -> None:
    """At position 7 with a reach of 2, block 0 ends at 3: no query reads it."""
    block_tables = tables(sliding_window_reach=[0, 2])
    num_computed_tokens = torch.tensor([7, 0, 0])
    table = block_tables.gather_block_tables(
        torch.tensor([0]), 1, num_computed_tokens=num_computed_tokens
    )[1]
    assert table.tolist() == [[0, 9, 0]]


def test_staged_blocks_are_unseen_until_applied() -> None:
    """Appending continues after the blocks staged so far."""
    block_tables = tables()
    block_tables.append_block_ids(0, ([], [4]), overwrite=False)
    assert block_tables.num_blocks[1][0] == 2
    block_tables.apply_staged_writes()
    assert block_tables.num_blocks[1][0] == 3
    assert block_tables.block_ids[1][0] == [7, 9, 4]


def test_slots_past_the_real_tokens_are_minus_one() -> None:
    """The whole tail is cleared, and a group without slot mapping is all -1."""
    block_tables = tables()
    block_tables.slot_mappings.fill_(55)
    slots = block_tables.compute_slot_mappings(
        torch.tensor([2, 0]), torch.tensor([0, 1, 3]), torch.tensor([1, 3, 4]), 4
    )
    assert slots.tolist() == [[-1] * 4, [25, 31, 36, -1]]
    assert block_tables.slot_mappings[1, 3:].tolist() == [-1] * 5


def test_request_mapped_to_minus_one_has_no_slots() -> None:
    """A dummy request owns no block."""
    slots = tables().compute_slot_mappings(
        torch.tensor([-1]), torch.tensor([0, 1]), torch.tensor([1]), 1
    )
    assert slots.tolist() == [[-1], [-1]]


def test_dummy_steps_read_null_blocks_and_no_slots() -> None:
    """Both are views of the persistent buffers."""
    block_tables = tables()
    block_tables.gather_block_tables(torch.tensor([2, 0]), 2)
    table = block_tables.get_dummy_block_tables(1)[1]
    slots = block_tables.get_dummy_slot_mappings(2)
    assert table.tolist() == [[0, 0, 0]]
    assert block_tables.input_block_tables[1].tolist() == [[0, 0, 0]] * 3
    assert slots.tolist() == [[-1, -1], [-1, -1]]
    assert slots.data_ptr() == block_tables.slot_mappings.data_ptr()


def test_redirected_writes_land_in_the_null_block() -> None:
    """Counts grow as usual; ids are 0."""
    block_tables = tables()
    block_tables.redirect_writes_to_null_block = True
    block_tables.append_block_ids(1, ([4], [2, 3]), overwrite=True)
    block_tables.apply_staged_writes()
    assert block_tables.num_blocks[1][1] == 2
    assert block_tables.block_ids[1][1] == [0, 0, 0]


def test_context_parallelism_is_refused() -> None:
    """The error names the value."""
    with pytest.raises(ValueError, match="cp_size=2"):
        BlockTables([4], 1, 1, [1], CPU, cp_size=2)


def test_missing_group_is_refused() -> None:
    """Every group needs an entry."""
    with pytest.raises(ValueError, match="max_num_blocks_per_group has 1 entries"):
        BlockTables([4, 4], 1, 1, [1], CPU)


def test_full_row_is_refused() -> None:
    """The error names request, group and both sizes."""
    with pytest.raises(RuntimeError, match="request 0 needs 4 blocks in group 1"):
        tables().append_block_ids(0, ([], [1, 2]), overwrite=False)
