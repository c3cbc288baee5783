"""The prover refuses builds for what they do, and each of its checks is needed."""

import inspect
import json

import pytest

from graphparity.conformance.builders import wrong_builders as wrong
from graphparity.fastpath.graph_key import GraphKey
from graphparity.fastpath.prover import ALL_CHECKS, judge
from graphparity.fastpath.proving.verdict import Check, Verdict

KEYS = tuple(
    GraphKey(num_reqs, padded, num_reqs, padded)
    for num_reqs, padded in ((1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (8, 8))
)
TWO_TOKENS = tuple(GraphKey(n, padded, 2 * n, 2 * padded) for n, padded, *_ in KEYS)

# Builder -> the check that must refuse it, and the operation or field at fault.
REFUSED: dict[type[wrong.PlainBuild], tuple[Check, str]] = {
    wrong.FrozenHostLength: (Check.HOST_VALUES, "aten.fill_.Scalar"),
    wrong.DeviceRead: (Check.RECORDABLE_NODES, "Tensor.item"),
    wrong.PageableMask: (Check.RECORDABLE_NODES, "Tensor.to"),
    wrong.FreshOutput: (Check.STABLE_OUTPUTS, "token_lens"),
    wrong.BuildCounter: (Check.HOST_VALUES, "aten.fill_.Scalar"),
    wrong.HostPlannedBranch: (Check.HOST_VALUES, "aten.clamp_.default"),
    wrong.HostRequestIndices: (Check.HOST_VALUES, "aten.clone.default"),
    wrong.BorrowedStaging: (Check.RECORDABLE_NODES, "aten.copy_.default"),
    wrong.StaleStaging: (Check.RECORDABLE_NODES, "aten.copy_.default"),
    wrong.ClampedInput: (Check.WRITE_SET, "input_buffers.positions"),
    wrong.DoubleBuffered: (Check.MOVED_POOL, "aten.add_.Tensor"),
    wrong.UninitialisedScratch: (Check.REPLAY_EQUALS_EAGER, "builder.token_lens"),
    wrong.FrozenHostField: (Check.REPLAY_EQUALS_EAGER, "num_reqs"),
    wrong.MovingOutput: (Check.STABLE_OUTPUTS, "token_lens"),
}

# For each check, a builder that no other check refuses.
CAUGHT_BY_ONE = {
    Check.RECORDABLE_NODES: wrong.BorrowedStaging,
    Check.HOST_VALUES: wrong.HostRequestIndices,
    Check.MOVED_POOL: wrong.DoubleBuffered,
    Check.REPLAY_EQUALS_EAGER: wrong.UninitialisedScratch,
    Check.WRITE_SET: wrong.ClampedInput,
    Check.STABLE_OUTPUTS: wrong.FreshOutput,
}


def judged(
    build: wrong.PlainBuild,
    keys: tuple[GraphKey, ...] = KEYS,
    checks: tuple[Check, ...] = ALL_CHECKS,
) -> Verdict:
    """The verdict on ``build``, with the checks that count."""
    return judge(
        build,
        keys,
        wrong.emulated_recorder,
        max_model_len=wrong.MAX_MODEL_LEN,
        max_num_reqs=wrong.MAX_NUM_REQS,
        checks=checks,
    )


def wrong_lines(build_cls: type[wrong.PlainBuild]) -> set[int]:
    """The lines of a builder marked as wrong; without a mark, where it builds."""
    source, first = inspect.getsourcelines(build_cls)
    marked = {i for i, line in enumerate(source, first) if line.endswith("# wrong\n")}
    return marked or {inspect.getsourcelines(build_cls.build)[1]}


@pytest.mark.parametrize("keys", [KEYS, TWO_TOKENS], ids=["1 token", "2 tokens"])
@pytest.mark.parametrize("build_cls", REFUSED)
def test_a_wrong_build_is_refused_for_its_fault(
    build_cls: type[wrong.PlainBuild], keys: tuple[GraphKey, ...]
) -> None:
    """The refusal names the check, the operation or field, and the line."""
    check, fault = REFUSED[build_cls]
    refusal = judged(build_cls(), keys).refusal
    assert refusal is not None
    assert (refusal.check, fault in (refusal.operation, refusal.field)) == (check, True)
    path, line = refusal.location.rsplit(":", 1)
    assert path == wrong.__file__
    assert int(line) in wrong_lines(build_cls)


@pytest.mark.parametrize("check", CAUGHT_BY_ONE)
def test_a_check_catches_what_no_other_does(check: Check) -> None:
    """A builder is refused by this check alone, and accepted without it."""
    build_cls = CAUGHT_BY_ONE[check]
    others = tuple(other for other in ALL_CHECKS if other is not check)
    assert judged(build_cls(), checks=others).recordable
    alone = judged(build_cls(), checks=(check,))
    assert not alone.recordable
    assert judged(build_cls()).checks_passed == others


def test_every_check_has_its_own_builder() -> None:
    """A check without one would be needless."""
    assert CAUGHT_BY_ONE.keys() == set(ALL_CHECKS)


def test_the_batches_of_a_refusal_are_shrunk_and_show_it() -> None:
    """Lengths are the smallest that take another branch; the reason is of this pair."""
    refusal = judged(wrong.HostPlannedBranch(), KEYS).refusal
    assert refusal is not None
    assert refusal.key == KEYS[0]
    (recorded,), (replayed,) = (
        refusal.batches.recorded.seq_lens,
        refusal.batches.replayed.seq_lens,
    )
    assert replayed <= wrong.BLOCK_SIZE < recorded < wrong.MAX_MODEL_LEN


def test_a_refusal_tells_the_values_of_its_own_batches() -> None:
    """What is frozen is the recorded batch's longest sequence."""
    refusal = judged(wrong.FrozenHostLength()).refusal
    assert refusal is not None
    recorded, replayed = (
        max(rows.seq_lens)
        for rows in (refusal.batches.recorded, refusal.batches.replayed)
    )
    assert f"{recorded} in one batch, {replayed} in another" in refusal.reason


@pytest.mark.parametrize("build_cls", REFUSED)
def test_a_verdict_is_plain_json(build_cls: type[wrong.PlainBuild]) -> None:
    """Enum members by name, batches as numbers."""
    plain = json.loads(judged(build_cls(), KEYS[:3]).to_json())
    assert plain["builder"] == build_cls.__name__
    if build_cls is wrong.HostRequestIndices:
        batches = plain["refusal"]["batches"]
        assert plain["refusal"]["check"] == "HOST_VALUES"
        assert batches["recorded"]["req_state_indices"] == [0, 1]
        assert plain["refusal"]["key"] == [2, 2, 2, 2]
