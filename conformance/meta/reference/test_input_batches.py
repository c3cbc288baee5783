"""Dummy batches against values computed by hand."""

import pytest
import torch

from graphparity.reference.input_batch import InputBatch, InputBuffers


def stale_buffers() -> InputBuffers:
    """Buffers of four requests and eight tokens, full of an older step's values."""
    input_buffers = InputBuffers(4, 8, torch.device("cpu"))
    for buffer in vars(input_buffers).values():
        if isinstance(buffer, torch.Tensor):
            buffer.fill_(9)
    return input_buffers


def test_remainder_goes_to_the_last_requests() -> None:
    """Seven tokens over three requests are 2, 2 and 3; lengths equal queries."""
    batch = InputBatch.make_dummy(3, 7, stale_buffers())
    assert batch.num_scheduled_tokens.tolist() == [2, 2, 3]
    assert batch.seq_lens.tolist() == [2, 2, 3]
    assert batch.query_start_loc.tolist() == [0, 2, 4, 7]
    assert batch.query_start_loc_np.tolist() == [0, 2, 4, 7]
    assert batch.logits_indices.tolist() == [1, 3, 6]


def test_buffers_are_written_in_place() -> None:
    """Past the batch, lengths are 0 and offsets the token count; tokens are stale."""
    input_buffers = stale_buffers()
    batch = InputBatch.make_dummy(3, 7, input_buffers)
    assert input_buffers.seq_lens.tolist() == [2, 2, 3, 0]
    assert input_buffers.query_start_loc.tolist() == [0, 2, 4, 7, 7]
    assert input_buffers.positions.tolist() == [0] * 7 + [9]
    assert input_buffers.input_ids.tolist() == [0] * 7 + [9]
    assert batch.positions.data_ptr() == input_buffers.positions.data_ptr()


def test_host_bound_is_apart_from_the_scheduled_tokens() -> None:
    """Raising the bound in place leaves the schedule alone."""
    batch = InputBatch.make_dummy(3, 6, stale_buffers())
    batch.seq_lens_cpu_upper_bound += 5
    assert batch.num_scheduled_tokens.tolist() == [2, 2, 2]


def test_padding_flag_marks_the_batch_tokens() -> None:
    """A dummy batch is all padding unless told otherwise."""
    assert (
        InputBatch.make_dummy(1, 2, stale_buffers()).is_padding.tolist() == [True] * 2
    )
    batch = InputBatch.make_dummy(1, 2, stale_buffers(), is_padding=False)
    assert batch.is_padding.tolist() == [False] * 2


@pytest.mark.parametrize(("num_reqs", "num_tokens"), [(0, 2), (3, 2)])
def test_requests_without_tokens_are_refused(num_reqs: int, num_tokens: int) -> None:
    """The error names both counts."""
    with pytest.raises(ValueError, match=f"num_reqs={num_reqs}"):
        InputBatch.make_dummy(num_reqs, num_tokens, stale_buffers())


def test_query_longer_than_the_promise_is_refused() -> None:
    """Seven tokens over three requests need a query of 3."""
    with pytest.raises(ValueError, match="max_query_len=2"):
        InputBatch.make_dummy(3, 7, stale_buffers(), max_query_len=2)
