"""Two data-parallel ranks, each an engine of its own that is given its own requests.

vLLM lets the ranks of a mixture of experts agree on every step's padding, for their
experts speak to each other; dense ranks it leaves alone. The tests' model is dense and
is called a mixture: ranks then agree over gloo as they would, the padding of the
largest is everybody's, and a rank without requests runs dummy steps, while no expert
has to run on a CPU.
"""

# ruff: noqa: PLC0415, vLLM is imported once this process is prepared for it
import os
from functools import cache
from types import SimpleNamespace

NUM_RANKS = 2


def join_ranks(rank: int, port: int) -> None:
    """Let the next engine of this process be ``rank``; both meet at ``port``."""
    _call_it_a_mixture()
    os.environ |= {
        "VLLM_DP_SIZE": str(NUM_RANKS),
        "VLLM_DP_RANK": str(rank),
        "VLLM_DP_RANK_LOCAL": str(rank),
        "VLLM_DP_MASTER_IP": "127.0.0.1",
        "VLLM_DP_MASTER_PORT": str(port),
    }


@cache
def _call_it_a_mixture() -> None:
    from vllm.config import ModelConfig
    from vllm.v1.worker.gpu import model_runner

    ModelConfig.is_moe = property(lambda self: True)
    # The runner asks what carries tokens to experts whether it notices lost ranks.
    no_experts = SimpleNamespace(support_fault_tolerance=False)
    model_runner.get_ep_all2all_manager = lambda: no_experts
