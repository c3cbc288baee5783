"""Our rule of the capture sizes is the installed vLLM's, asked for every step.

Collected only for subjects of vLLM, whose process has it set up.
"""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from graphparity.conformance.subjects.registry import load_subject
from graphparity.fastpath.capture_ladder import CaptureLadder
from graphparity.reference.interface import CUDAGraphMode

pytestmark = pytest.mark.emulated_recorder_only

LADDERS = [
    ((1, 2, 4, 8), 8),
    ((1, 2, 4, 8, 16, 24), 12),
    ((1, 2, 4, 8, 16, 24), 8),
    ((3, 5, 7), 9),
    ((16,), 4),
]
"""Capture sizes and most requests: even, gapped, off the ladder, one rung alone."""


@pytest.mark.parametrize("query_len", [1, 2, 3, 4])
@pytest.mark.parametrize("mode", ["FULL_AND_PIECEWISE", "FULL_DECODE_ONLY"])
def test_dispatch_answers_as_vllm_s(
    mode: str, query_len: int, shortest_subject: str
) -> None:
    """Mode, tokens and requests after padding of uniform and of mixed steps."""
    load_subject(shortest_subject)
    is_piecewise = mode == "FULL_AND_PIECEWISE"
    mixed_mode = CUDAGraphMode.PIECEWISE if is_piecewise else CUDAGraphMode.NONE
    for sizes, max_num_reqs in LADDERS:
        ours = CaptureLadder(sizes, max_num_reqs, mixed_mode)
        theirs = _manager(ours, mode, query_len)
        for step in _steps(max_num_reqs, query_len):
            actual, expected = ours.dispatch(*step, 0), theirs.dispatch(*step, 0)
            assert _plain(actual) == _plain(expected), (sizes, max_num_reqs, step)


def _steps(max_num_reqs: int, query_len: int) -> Iterator[tuple[int, int, int | None]]:
    """Requests, tokens and query length; None for a mixed step."""
    for num_reqs in range(1, max_num_reqs + 1):
        num_tokens = num_reqs * query_len
        yield num_reqs, num_tokens, query_len
        yield num_reqs, num_tokens + 1, None


def _plain(descriptor: Any) -> tuple[str, int, int | None, int | None]:
    return (
        descriptor.cg_mode.name,
        descriptor.num_tokens,
        descriptor.num_reqs,
        descriptor.uniform_token_count,
    )


def _manager(ladder: CaptureLadder, mode: str, query_len: int) -> Any:
    """The installed vLLM's, which reads these settings alone."""
    from vllm.config.compilation import CUDAGraphMode as VllmMode  # noqa: PLC0415
    from vllm.v1.worker.gpu.cudagraph_utils import (  # noqa: PLC0415
        CudaGraphManager,
    )

    vllm_config: Any = SimpleNamespace(
        scheduler_config=SimpleNamespace(max_num_seqs=ladder.max_num_reqs),
        compilation_config=SimpleNamespace(
            cudagraph_capture_sizes=list(ladder.capture_sizes),
            max_cudagraph_capture_size=max(ladder.capture_sizes),
        ),
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
        cache_config=SimpleNamespace(use_kda_recoverssm=False),
        speculative_config=None,
    )
    device = torch.device("cpu")
    manager = CudaGraphManager(vllm_config, device, VllmMode[mode], query_len)
    # ``capture()`` sets this last.
    manager._graphs_captured = True
    return manager
