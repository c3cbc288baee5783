"""The prover's verdict on a builder case, with a recorder chosen by name."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from graphparity.conformance.benchmarks.timing import host_time, launch_floor
from graphparity.conformance.builders.cases import CASES, BuilderCase, make_build
from graphparity.conformance.subjects.recorders import make_recorder, recorder_kind
from graphparity.fastpath.graph_key import GraphKey
from graphparity.fastpath.group_build import GroupBuild
from graphparity.fastpath.prover import judge
from graphparity.fastpath.proving.batches import longest_batch
from graphparity.fastpath.proving.verdict import Level, Verdict
from graphparity.fastpath.recorders import CudaRecorder, Recorder

MAX_MODEL_LEN = 1024


def case_keys(case: BuilderCase, max_num_reqs: int) -> list[GraphKey]:
    """The keys of a ladder of powers of two up to ``max_num_reqs``, itself one, at the
    case's query length.
    """
    keys = []
    first = 1
    for rung in (2**power for power in range(max_num_reqs.bit_length())):
        for num_reqs in range(first, rung + 1):
            sizes = (num_reqs, rung, num_reqs * case.query_len, rung * case.query_len)
            keys.append(GraphKey(*sizes))
        first = rung + 1
    return keys


def judge_case(
    name: str, recorder: str = "emulated", level: Level = Level.SAMPLED
) -> Verdict:
    """Make the case's build and judge it."""
    return judging_of(name, recorder, level)()


def judging_of(name: str, recorder: str, level: Level) -> Callable[[], Verdict]:
    """Make the case's build; a call of what is returned judges it."""
    kind = recorder_kind(recorder)
    build = make_build(name, kind.device, kind.max_num_seqs)

    def recorder_of(build: GroupBuild) -> Recorder:
        memory = {**build.inputs, **build.outputs}
        return make_recorder(recorder, memory, build.rotating_inputs.values())

    return partial(
        judge,
        build,
        case_keys(CASES[name], kind.max_num_seqs),
        recorder_of,
        max_model_len=MAX_MODEL_LEN,
        max_num_reqs=kind.max_num_seqs,
        level=level,
    )


@dataclass(frozen=True)
class BuildTimes:
    """Microseconds of host time of a builder's build, on a GPU."""

    eager: float
    replayed: float
    """The launch of the recorded build alone; 0 where there is nothing to launch."""
    launch_floor: float
    """The launch of a graph of one small kernel, measured right before."""


def timed_case(name: str) -> BuildTimes:
    """Time the largest key's build of a case that can be recorded."""
    kind = recorder_kind("cuda")
    build = make_build(name, kind.device, kind.max_num_seqs)
    key = max(case_keys(CASES[name], kind.max_num_seqs))
    staged = build.stage(longest_batch(key, MAX_MODEL_LEN, seed=0))
    recorder = CudaRecorder()
    recorder.warm_up(staged)
    recorder.synchronize()
    graph, _ = recorder.capture(staged)
    floor = launch_floor().median
    replayed = host_time(graph.replay).median if graph.num_nodes else 0.0
    return BuildTimes(host_time(staged).median, replayed, floor)
