"""The reference model state: lookback, sizes of a build, refusals."""

import pytest

from graphparity.conformance.meta.reference.hand_batches import input_batch, int32
from graphparity.conformance.meta.reference.hand_steps import (
    CPU,
    LATENTS,
    Requests,
    TokenIds,
    decode_step,
    model_state,
    prepare_attn,
)
from graphparity.reference.attention import AttentionGroup
from graphparity.reference.input_batch import InputBuffers
from graphparity.reference.interface import CUDAGraphMode


def test_lookback_is_newest_first_and_minus_one_before_the_start() -> None:
    """Positions 5 and 1 look back on ids 4, 3 and on id 0 alone."""
    ids = int32([list(range(10 * req, 10 * req + 10)) for req in range(3)])
    state = model_state()
    inputs = state.prepare_inputs(decode_step(), Requests(TokenIds(ids)))
    lookback: object = inputs["lookback_token_ids"]
    assert lookback is state.lookback_token_ids
    assert inputs["lookback_token_ids"].tolist() == [
        [24, 23],
        [0, -1],
        [-1, -1],
        [-1, -1],
    ]


def test_dummy_lookback_is_all_minus_one_in_the_same_buffer() -> None:
    """A captured graph reads the buffer the next step refills."""
    state = model_state()
    assert state.lookback_token_ids is not None
    state.lookback_token_ids.fill_(7)
    inputs = state.prepare_dummy_inputs(2, 2)
    lookback: object = inputs["lookback_token_ids"]
    assert lookback is state.lookback_token_ids
    assert inputs["lookback_token_ids"].tolist() == [[-1, -1]] * 4


def test_depth_0_has_no_lookback() -> None:
    """No buffer and no model input."""
    state = model_state(depth=0)
    ids = int32([[0] * 10] * 3)
    assert state.prepare_inputs(decode_step(), Requests(TokenIds(ids))) == {}
    assert state.prepare_dummy_inputs(1, 1) == {}


def test_full_step_has_padded_sizes_and_every_layer() -> None:
    """Layers of a group share one object; a padded request is empty."""
    metadata = prepare_attn(model_state(), decode_step())
    assert list(metadata) == ["ring", "window", "latents", "shared"]
    assert metadata["latents"] is metadata["shared"]
    assert metadata["latents"].num_reqs == 3
    assert metadata["latents"].max_seq_len == 6
    assert metadata["ring"].slot_mapping[:2].tolist() == [45, 25]
    assert metadata["window"].decode_swa_lens.tolist() == [3, 2, 0]
    assert metadata["window"].token_to_req_indices.tolist() == [0, 1, 0]


def test_eager_step_has_real_sizes() -> None:
    """Outside FULL mode the padded request is not built."""
    metadata = prepare_attn(model_state(), decode_step(), mode=CUDAGraphMode.NONE)
    assert metadata["latents"].num_reqs == 2
    assert metadata["window"].decode_swa_lens.tolist() == [3, 2]


def test_capture_takes_the_worst_case_length() -> None:
    """``max_seq_len`` is the model's, so the graph serves every replay."""
    metadata = prepare_attn(
        model_state(), decode_step(), mode=CUDAGraphMode.NONE, for_capture=True
    )
    assert metadata["latents"].max_seq_len == 64


def test_full_step_with_a_long_query_is_refused() -> None:
    """A FULL step is uniform decode; the error names the lengths."""
    batch = input_batch([6], InputBuffers(4, 8, CPU), query_len=3)
    with pytest.raises(ValueError, match=r"query_lens=\[3\]"):
        prepare_attn(model_state(), batch)


def test_smaller_kernel_blocks_split_the_table() -> None:
    """Kernel block ``j`` of block ``b`` is ``2 * b + j``; the stride may be wider."""
    group = AttentionGroup(object, ["latents"], LATENTS, 2, kernel_block_size=2)
    table = int32([[7, 0]])
    assert group.map_to_kernel_block_table(table).tolist() == [[14, 15, 0, 1]]
    group.kernel_block_stride = 10
    assert group.map_to_kernel_block_table(table).tolist() == [[70, 71, 0, 1]]
