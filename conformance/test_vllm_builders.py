"""The prover's verdicts on vLLM's real metadata builders, one flavour a process.

Collected only for subjects of vLLM.
"""

import pytest

from graphparity.conformance.builders.cases import CASES
from graphparity.conformance.builders.judging import judge_case


def test_verdict(builder_case: str, request: pytest.FixtureRequest) -> None:
    """A builder is recordable or refused as its case says, and a refusal names the
    builder's own line.
    """
    case = CASES[builder_case]
    verdict = judge_case(builder_case, request.config.getoption("--recorder"))
    actual = "recordable" if verdict.recordable else "refused"
    assert actual == case.expected, f"{verdict.refusal}; expected because {case.why}"
    if verdict.refusal is not None:
        assert "/vllm/" in verdict.refusal.location
    else:
        assert verdict.fields, "nothing was compared"
