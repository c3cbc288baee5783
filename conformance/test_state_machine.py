"""Whatever happened to its requests before, a step equals the eager state's."""

import pytest

from graphparity.conformance import profile
from graphparity.conformance.pytest_plugin import run_profile
from graphparity.conformance.subjects.registry import fresh_subject, is_vllm
from graphparity.conformance.tally import Tally


@pytest.mark.parametrize("releases", [False, True], ids=["recorded once", "renewed"])
def test_lives_of_requests(
    shortest_subject: str, releases: bool, request: pytest.FixtureRequest
) -> None:
    """Requests are added, grow, finish in mid-batch, are preempted and resume, on
    blocks that others held before; recordings are released and renewed, or not.
    """
    num_lives, num_rules = run_profile(request.config).lives_of(
        is_vllm=is_vllm(shortest_subject), releases=releases
    )
    profile.lives_equal_eager(
        fresh_subject(shortest_subject, request.config.getoption("--recorder")),
        Tally(),
        releases=releases,
        num_lives=num_lives,
        num_rules=num_rules,
    )
