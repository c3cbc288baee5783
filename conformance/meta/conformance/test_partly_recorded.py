"""A partly recorded step must fill the map that a forward graph reads."""

from typing import Any

import pytest
import torch

from graphparity.conformance.checks import check_step
from graphparity.conformance.comparer import ParityError
from graphparity.conformance.decode_batches import DecodeBatch
from graphparity.conformance.partly_recorded import partly_recorded
from graphparity.conformance.subjects.torch_decode import torch_decode
from graphparity.fastpath.graph_key import GraphKey

KEY = GraphKey(3, 4, 6, 8)
BATCH = DecodeBatch(KEY, (5, 16, 17), (3, 1, 2), seed=1)
READ_MAP = "builders.compressor.token_to_req_indices"
"""The map that the serial build makes, and with it every capture."""


@pytest.mark.parametrize("refused", [0, 1])
def test_a_map_that_a_forward_graph_reads_and_nobody_fills_is_found(
    refused: int,
) -> None:
    """Whichever part of the step should have filled it."""
    subject = torch_decode("torch-decode:2", 2, "emulated")
    partly = partly_recorded(subject, {refused}, subject.graph_keys)
    check_step(partly, BATCH)
    _leave_unfilled(partly.state, partly.memory[READ_MAP])
    with pytest.raises(ParityError, match=rf"\n  {READ_MAP}\["):
        check_step(partly, BATCH)


def _leave_unfilled(state: Any, read_map: torch.Tensor) -> None:
    """Let a step put back what the map held before it."""
    prepare_attn = state.prepare_attn

    def faulty(*args: Any, **kwargs: Any) -> Any:
        before = read_map.clone()
        metadata = prepare_attn(*args, **kwargs)
        read_map.copy_(before)
        return metadata

    state.prepare_attn = faulty
