"""One recording serves a rung if, and only if, its keys were seen to build alike."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from graphparity.conformance.builders import wrong_builders as plain
from graphparity.conformance.subjects.subject import Subject
from graphparity.conformance.subjects.torch_decode import torch_decode
from graphparity.fastpath.graph_key import GraphKey, largest_of_rungs
from graphparity.fastpath.prover import judge
from graphparity.fastpath.proving.batches import longest_batch
from graphparity.fastpath.proving.recordings import Recordings
from graphparity.fastpath.proving.verdict import Level, Verdict
from graphparity.fastpath.runtime_batch import StepRows
from graphparity.fastpath.step_inputs import StepInputs

KEYS = tuple(
    GraphKey(num_reqs, rung, num_reqs, rung)
    for num_reqs, rung in (
        (1, 1),
        (2, 2),
        (3, 4),
        (4, 4),
        (5, 8),
        (6, 8),
        (7, 8),
        (8, 8),
    )
)
PADDED = tuple(
    GraphKey(num_reqs, rung, num_reqs, rung)
    for rung, below in ((2, 1), (4, 2), (8, 4))
    for num_reqs in range(1, below + 1)
)
"""What a larger rank adds to the rungs of ``KEYS``."""


def test_every_key_is_served_by_the_fullest_of_its_rung() -> None:
    """Of equal padding, in requests and in tokens."""
    one, other = GraphKey(3, 4, 6, 8), GraphKey(4, 4, 8, 8)
    apart = GraphKey(3, 4, 3, 4)
    found = largest_of_rungs([one, other, apart])
    assert found == {one: other, other: other, apart: apart}


class ByRung(plain.PlainBuild):
    """Reads requests from the device alone, and returns no count of them."""

    def requests_of_tokens(self, batch: Any) -> torch.Tensor:
        """[num_tokens_after_padding] request of each token; the last for padding."""
        tokens = torch.arange(batch.num_tokens_after_padding, device=plain.DEVICE)
        starts = batch.query_start_loc[1:].long()
        reqs = torch.bucketize(tokens, starts, right=True)
        return reqs.clamp(max=batch.num_reqs_after_padding - 1)

    def build(self, step: StepInputs) -> plain.PlainMetadata:
        """The metadata, with the padded count."""
        padded = step.input_batch.num_reqs_after_padding
        return replace(super().build(step), num_reqs=padded)


class CountsRequests(ByRung):
    """Returns the real count: a host value of the key."""

    def build(self, step: StepInputs) -> plain.PlainMetadata:
        """The metadata, with the real count."""
        return replace(super().build(step), num_reqs=step.input_batch.num_reqs)


class MasksPadding(ByRung):
    """Compares with the real count on the device: a scalar of the key."""

    def requests_of_tokens(self, batch: Any) -> torch.Tensor:
        """Padding maps to request 0."""
        tokens = torch.arange(batch.num_tokens_after_padding, device=plain.DEVICE)
        return torch.where(
            tokens < batch.num_tokens, super().requests_of_tokens(batch), 0
        )


class WritesRealRows(ByRung):
    """Writes as many rows as there are requests: an operation of another shape."""

    def build(self, step: StepInputs) -> plain.PlainMetadata:
        """The metadata; real rows are written twice."""
        metadata = super().build(step)
        self.token_lens[: step.input_batch.num_reqs].add_(0)
        return metadata


class PlansOnTheHost(ByRung):
    """Does more in nearly full steps: a branch of the key."""

    def build(self, step: StepInputs) -> plain.PlainMetadata:
        """The metadata; padding is written twice where it is small."""
        metadata = super().build(step)
        batch = step.input_batch
        if batch.num_reqs > batch.num_reqs_after_padding - 1:
            self.token_lens[batch.num_tokens_after_padding - 1 :].add_(0)
        return metadata


class DiffersAtSeven(ByRung):
    """Another formula at seven requests of eight alone: not among the keys replayed."""

    def build(self, step: StepInputs) -> plain.PlainMetadata:
        """The metadata; lengths are one more."""
        metadata = super().build(step)
        if step.input_batch.num_reqs == 7:
            self.token_lens.add_(1)
        return metadata


class DiffersInASmallRung(ByRung):
    """Another formula for three requests: in a rung that is not replayed."""

    def build(self, step: StepInputs) -> plain.PlainMetadata:
        """The metadata; lengths are one more."""
        metadata = super().build(step)
        if step.input_batch.num_reqs == 3:
            self.token_lens.add_(1)
        return metadata


class DiffersFarBelowTheRung(ByRung):
    """Another formula where a smaller rung would hold the step: only a larger rank
    brings such a step.
    """

    def build(self, step: StepInputs) -> plain.PlainMetadata:
        """The metadata; lengths are one more."""
        metadata = super().build(step)
        batch = step.input_batch
        if batch.num_reqs <= batch.num_reqs_after_padding // 2:
            self.token_lens.add_(1)
        return metadata


class DiffersForOneRequest(ByRung):
    """Another formula for a single request in a rung of eight alone."""

    def build(self, step: StepInputs) -> plain.PlainMetadata:
        """The metadata; lengths are one more."""
        metadata = super().build(step)
        batch = step.input_batch
        if (batch.num_reqs, batch.num_reqs_after_padding) == (1, 8):
            self.token_lens.add_(1)
        return metadata


class DiffersForTwoRequests(ByRung):
    """Another formula for two requests in a rung of eight alone: not sampled."""

    def build(self, step: StepInputs) -> plain.PlainMetadata:
        """The metadata; lengths are one more."""
        metadata = super().build(step)
        batch = step.input_batch
        if (batch.num_reqs, batch.num_reqs_after_padding) == (2, 8):
            self.token_lens.add_(1)
        return metadata


def judged(
    build: plain.PlainBuild,
    level: Level = Level.SAMPLED,
    padded: Sequence[GraphKey] = (),
) -> Verdict:
    """The verdict on ``build``."""
    return judge(
        build,
        KEYS,
        plain.emulated_recorder,
        max_model_len=plain.MAX_MODEL_LEN,
        max_num_reqs=plain.MAX_NUM_REQS,
        level=level,
        keys_padded_for_other_ranks=padded,
    )


@pytest.mark.parametrize("level", [Level.SAMPLED, Level.ALL])
def test_a_build_that_reads_the_device_alone_shares(level: Level) -> None:
    """It is recordable, and its rungs need one recording each."""
    verdict = judged(ByRung(), level)
    assert (verdict.recordable, verdict.shares_rungs) == (True, True)


@pytest.mark.parametrize(
    "build_cls",
    [
        CountsRequests,
        MasksPadding,
        WritesRealRows,
        PlansOnTheHost,
        DiffersAtSeven,
        DiffersInASmallRung,
    ],
)
def test_a_build_that_depends_on_the_real_requests_does_not(
    build_cls: type[plain.PlainBuild],
) -> None:
    """It is recordable by key all the same."""
    verdict = judged(build_cls())
    assert (verdict.recordable, verdict.shares_rungs) == (True, False)


@pytest.mark.parametrize("level", [Level.SAMPLED, Level.ALL])
def test_a_build_that_reads_the_device_alone_shares_with_larger_ranks(
    level: Level,
) -> None:
    """A rung's recording serves from one request up."""
    assert judged(ByRung(), level, PADDED).shares_rungs


@pytest.mark.parametrize("build_cls", [DiffersFarBelowTheRung, DiffersForOneRequest])
def test_a_build_that_differs_far_below_the_rung_shares_with_nobody(
    build_cls: type[plain.PlainBuild],
) -> None:
    """The steps of one rank alone do not show it, those of a larger rank's do."""
    assert judged(build_cls()).shares_rungs
    verdict = judged(build_cls(), padded=PADDED)
    assert (verdict.recordable, verdict.shares_rungs) == (True, False)


def test_level_all_compares_every_step_of_larger_ranks() -> None:
    """Also what the fewest, the most and the middle between them do not show."""
    build_cls = DiffersForTwoRequests
    assert judged(build_cls(), padded=PADDED).shares_rungs
    assert not judged(build_cls(), Level.ALL, PADDED).shares_rungs


def test_a_recording_is_captured_once_for_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the judge recorded of a rung's largest key is what other keys are compared
    with: it is captured twice for itself, and once to be compared with the shortest.
    """
    captured: Counter[StepRows] = Counter()
    capture = Recordings.capture

    def counting(self: Recordings, rows: StepRows, staged: Any) -> Any:
        captured[rows] += 1
        return capture(self, rows, staged)

    monkeypatch.setattr(Recordings, "capture", counting)
    assert judged(ByRung()).shares_rungs
    assert captured[longest_batch(KEYS[-1], plain.MAX_MODEL_LEN, seed=0)] == 3


def test_full_keys_alone_show_nothing() -> None:
    """Sharing was not seen where there is nothing to share."""
    full = tuple(key for key in KEYS if key.num_reqs == key.num_reqs_after_padding)
    verdict = judge(
        ByRung(),
        full,
        plain.emulated_recorder,
        max_model_len=plain.MAX_MODEL_LEN,
        max_num_reqs=plain.MAX_NUM_REQS,
    )
    assert (verdict.recordable, verdict.shares_rungs) == (True, False)


def test_an_unjudged_build_does_not_share() -> None:
    """Sharing needs evidence."""
    assert not judged(ByRung(), Level.OFF).shares_rungs


def _sharing(subject: Subject) -> Subject:
    """``subject`` recorded once a rung, whatever the evidence."""
    state: Any = subject.state
    state._specialization = replace(
        state._specialization, shares_rungs=lambda state: True
    )
    subject.record()
    subject.addresses.clear()
    return subject


def test_a_state_records_once_a_rung() -> None:
    """And serves every key of it."""
    subject = _sharing(torch_decode("torch-decode:1", 1, "emulated"))
    graphs = vars(subject.state)["graphs"]
    assert set(graphs.recordings) == set(subject.graph_keys)
    assert graphs.num_graphs == len({key.rung for key in subject.graph_keys})
