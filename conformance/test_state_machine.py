"""Whatever happened to its requests before, a step equals the eager state's."""

import pytest
from hypothesis import HealthCheck, settings

from graphparity.conformance.checks import Tally
from graphparity.conformance.state_machine import run_state_machine
from graphparity.conformance.subjects.registry import fresh_subject, is_vllm

VLLM_LIVES = {False: (4, 12), True: (2, 12)}
"""Whether recordings are renewed -> lives, and the rules of each, of subjects made of
interpreted kernels."""
TORCH_LIVES = {False: (8, 30), True: (8, 30)}


@pytest.mark.parametrize("releases", [False, True], ids=["recorded once", "renewed"])
def test_lives_of_requests(
    shortest_subject: str, releases: bool, request: pytest.FixtureRequest
) -> None:
    """Requests are added, grow, finish in mid-batch, are preempted and resume, on
    blocks that others held before; recordings are released and renewed, or not.
    """
    recorder = request.config.getoption("--recorder")
    lives = VLLM_LIVES if is_vllm(shortest_subject) else TORCH_LIVES
    num_lives, num_rules = lives[releases]
    run_state_machine(
        fresh_subject(shortest_subject, recorder),
        Tally(),
        settings(
            max_examples=num_lives,
            stateful_step_count=num_rules,
            suppress_health_check=list(HealthCheck),
        ),
        releases=releases,
    )
