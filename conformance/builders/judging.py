"""The prover's verdict on a builder case, with a recorder chosen by name."""

from graphparity.conformance.builders.cases import CASES, BuilderCase, make_build
from graphparity.conformance.subjects.recorders import make_recorder, recorder_kind
from graphparity.fastpath.graph_key import GraphKey
from graphparity.fastpath.group_build import GroupBuild
from graphparity.fastpath.prover import judge
from graphparity.fastpath.proving.verdict import Level, Verdict
from graphparity.fastpath.recorders import Recorder

MAX_NUM_REQS = 16
MAX_MODEL_LEN = 1024
RUNGS = (1, 2, 4, 8, 16)


def case_keys(case: BuilderCase) -> list[GraphKey]:
    """The keys of a ladder of powers of two, at the case's query length."""
    keys = []
    first = 1
    for rung in RUNGS:
        for num_reqs in range(first, rung + 1):
            sizes = (num_reqs, rung, num_reqs * case.query_len, rung * case.query_len)
            keys.append(GraphKey(*sizes))
        first = rung + 1
    return keys


def judge_case(
    name: str, recorder: str = "emulated", level: Level = Level.SAMPLED
) -> Verdict:
    """Make the case's build and judge it."""
    build = make_build(name, recorder_kind(recorder).device)

    def recorder_of(build: GroupBuild) -> Recorder:
        memory = {**build.inputs, **build.outputs}
        return make_recorder(recorder, memory, build.rotating_inputs.values())

    return judge(
        build,
        case_keys(CASES[name]),
        recorder_of,
        max_model_len=MAX_MODEL_LEN,
        max_num_reqs=MAX_NUM_REQS,
        level=level,
    )
