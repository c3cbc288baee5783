"""Whether a group's metadata build may be recorded, decided by evidence alone.

A recording repeats the device work of one build, with the addresses and host values
of that one. It is right for every step of a key if nothing else than device memory
makes builds of the key differ. The prover captures, replays and builds eagerly what
it is given, whatever its name, and says what it saw: the class of every metadata
field, or why not, where, and the smallest pair of batches that shows it.

Not decided by it:
- whether device contents that follow a host bound, which the metadata carries too,
  are a schedule or a wrongly frozen length: both are *bound affecting*;
- writes to device memory that the build declares neither as input nor as output;
- what an object holds that every build returns again, past its own attributes;
- single-request keys alone cannot tell a request's length from the longest one's.

A rung's keys differ in their real requests alone. If all of them are captured alike,
and the recording of the largest serves others by the same checks, one recording may
serve the rung. Of the keys that data parallelism adds to a rung, from one request up,
a few are compared: the fewest requests, the most, and some between.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from graphparity.fastpath.graph_key import GraphKey
from graphparity.fastpath.group_build import GroupBuild
from graphparity.fastpath.proving.batches import (
    batch_pairs,
    judged_keys,
    replayed_rung_pairs,
    rung_pairs,
    sampled_rungs,
)
from graphparity.fastpath.proving.evidence import GroupEvidence
from graphparity.fastpath.proving.findings import Finding
from graphparity.fastpath.proving.recordings import Recordings
from graphparity.fastpath.proving.shrinking import smallest
from graphparity.fastpath.proving.verdict import (
    BatchPair,
    Check,
    Level,
    Refusal,
    Verdict,
)
from graphparity.fastpath.recorders.protocol import Recorder

ALL_CHECKS = tuple(Check)
MakeRecorder = Callable[[GroupBuild], Recorder]


def judge(
    build: GroupBuild,
    keys: Sequence[GraphKey],
    make_recorder: MakeRecorder,
    *,
    max_model_len: int,
    max_num_reqs: int,
    level: Level = Level.SAMPLED,
    seed: int = 0,
    checks: Collection[Check] = ALL_CHECKS,
    keys_padded_for_other_ranks: Sequence[GraphKey] = (),
) -> Verdict:
    """Judge one group's build. Its inputs are overwritten: never while serving.

    Args:
        build: the group's build over persistent buffers.
        keys: the keys that may be recorded.
        make_recorder: makes the recorder of the build's memory, once it is warm:
            some builders allocate in their first build.
        max_model_len: the longest sequence in tokens, with which keys are recorded.
        max_num_reqs: the most requests the runner's state holds.
        level: how many keys and batches are tried.
        seed: seeds the batches.
        checks: the checks that count; all of them, but to test one.
        keys_padded_for_other_ranks: keys of the same rungs that are recorded only if
            one recording serves a rung.
    """
    if level is Level.OFF or not keys:
        return Verdict(build.name, recordable=True, level=Level.OFF)
    judged = judged_keys(tuple(keys), level)
    limits = {"max_model_len": max_model_len, "max_num_reqs": max_num_reqs}
    pairs = {key: batch_pairs(key, level=level, seed=seed, **limits) for key in judged}
    # The largest step first, so that what grows has grown.
    build.stage(pairs[judged[-1]][0].recorded)()
    recordings = Recordings(build, make_recorder(build), max_num_reqs)
    evidence = GroupEvidence(build, recordings, checks)
    try:
        verdict = _verdict(evidence, pairs, keys, level)
        if verdict.recordable:
            of_rungs = [*keys, *sampled_rungs(keys_padded_for_other_ranks, level)]
            across = rung_pairs(of_rungs, max_model_len=max_model_len, seed=seed)
            shares_rungs = _shares_rungs(evidence.afresh(), across, level)
            verdict = replace(verdict, shares_rungs=shares_rungs)
        return verdict
    finally:
        recordings.release()


def _verdict(
    evidence: GroupEvidence,
    pairs: dict[GraphKey, list[BatchPair]],
    keys: Sequence[GraphKey],
    level: Level,
) -> Verdict:
    for key, of_key in pairs.items():
        for pair in of_key:
            found = evidence.findings(key, pair)
            if found:
                return _refused(evidence, key, pair, found, keys, level)
    return Verdict(
        builder=evidence.build.name,
        recordable=True,
        level=level,
        checks_passed=tuple(evidence.checks),
        fields=evidence.log.fields(),
        in_place_inputs=tuple(sorted(evidence.in_place_inputs)),
        nodes_per_key=dict(evidence.nodes_per_key),
    )


def _shares_rungs(
    evidence: GroupEvidence,
    pairs: dict[GraphKey, list[BatchPair]],
    level: Level,
) -> bool:
    """Whether all keys of every rung are captured alike, and nothing speaks against
    replaying the largest on others.
    """
    replayed = replayed_rung_pairs(pairs, level)
    return bool(pairs) and all(
        evidence.is_captured_alike(largest, pair)
        and (pair not in replayed.get(largest, ()) or evidence.is_served(pair))
        for largest, of_rung in pairs.items()
        for pair in of_rung
    )


def _refused(
    evidence: GroupEvidence,
    key: GraphKey,
    pair: BatchPair,
    found: list[Finding],
    keys: Sequence[GraphKey],
    level: Level,
) -> Verdict:
    nodes_per_key = dict(evidence.nodes_per_key)
    passed = _passed(evidence.checks, found)
    shown = [found[0]]

    def shows(other_key: GraphKey, other: BatchPair) -> bool:
        again = GroupEvidence(evidence.build, evidence.recordings, [shown[0].check])
        alike = [it for it in again.findings(other_key, other) if it.is_like(shown[0])]
        shown[:0] = alike[:1]
        return bool(alike)

    key, pair = smallest(key, pair, keys, shows)
    return Verdict(
        builder=evidence.build.name,
        recordable=False,
        level=level,
        checks_passed=passed,
        refusal=_refusal(shown[0], key, pair),
        nodes_per_key=nodes_per_key,
    )


def _passed(checks: Collection[Check], found: list[Finding]) -> tuple[Check, ...]:
    """The checks that found nothing; none where nothing could be captured."""
    failed = {it.check for it in found}
    if any(it.is_capture_error for it in found):
        return ()
    return tuple(check for check in checks if check not in failed)


def _refusal(finding: Finding, key: GraphKey, pair: BatchPair) -> Refusal:
    return Refusal(
        check=finding.check,
        operation=finding.operation,
        field=finding.field,
        location=finding.location,
        reason=finding.reason,
        key=key,
        batches=pair,
    )
