"""Faults planted in what a hybrid does around its recorded call are caught.

Collected only for subjects of vLLM, whose process has it set up; run on those hybrids
among them whose recordings read accepted-token counts.
"""

# ruff: noqa: PLC0415, vLLM is imported once the subjects have set it up
from typing import Any

import pytest

from graphparity.conformance.checks import check_history, check_step
from graphparity.conformance.comparer import ParityError
from graphparity.conformance.decode_batches import DecodeBatch
from graphparity.conformance.pytest_plugin import subject_names
from graphparity.conformance.subjects.registry import fresh_subject
from graphparity.conformance.subjects.subject import Subject
from graphparity.fastpath.graph_key import GraphKey
from graphparity.fastpath.seams import Seam
from graphparity.fastpath.specialize import Specialization, specialize

State = Any
"""A specialized state, its private parts included."""
Arguments = dict[str, Any]
"""Those of a call of ``build_attn_metadata``."""


COUNTING = ("mamba2", "recoverssm", "short-conv")
"""The hybrids whose recurrent builder is recorded with speculation."""
FAMILIES = {
    "counting": [f"mamba-hybrid-{kind}" for kind in COUNTING],
    "committing": ["mamba-hybrid-recoverssm"],
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The subjects asked for, by what their steps do."""
    for fixture in FAMILIES.keys() & metafunc.fixturenames:
        names = [
            name
            for name in subject_names(metafunc.config)
            if name.rpartition(":")[0] in FAMILIES[fixture] and name[-2:] != ":1"
        ]
        metafunc.parametrize(fixture, names, indirect=True)


@pytest.fixture
def counting(request: pytest.FixtureRequest) -> Subject:
    """A subject of the test's own, seen to pass the step that shows the faults."""
    subject = fresh_subject(request.param, request.config.getoption("--recorder"))
    check_history(subject, [_batch(subject, seed=1), _batch(subject, seed=3)])
    return subject


committing = counting


def test_counts_of_the_recorded_step_are_caught(counting: Subject) -> None:
    """The gather is left out of later steps: each replay reads the counts that its key
    was recorded with.
    """
    state: State = counting.state
    sound, recorded = state._keep_counts, state._num_accepted_tokens

    def keep_while_recording(arguments: Arguments) -> Any:
        return recorded if state._step else sound(arguments)

    state._keep_counts = keep_while_recording
    counting.record()
    with pytest.raises(ParityError, match=r"num_accepted_tokens\[\(0,\)"):
        check_step(counting, _batch(counting, seed=3))


@pytest.mark.emulated_recorder_only  # a GPU's graph reads what was freed, right or not
def test_gather_within_the_recording_is_caught(counting: Subject) -> None:
    """All of ``prepare_attn`` is recorded, with the gather through ``idx_mapping``."""
    from vllm.v1.worker.gpu.model_states.mamba_hybrid import MambaHybridModelState

    whole = Seam("prepare_attn", MambaHybridModelState.prepare_attn)
    refusals = _recorded_by(counting, whole).graphs.refusals
    assert refusals.keys() == {*counting.graph_keys}
    assert all("mamba_hybrid.py" in str(it.location) for it in refusals.values())


def test_stale_counts_in_padded_rows_are_caught(counting: Subject) -> None:
    """The counts of live rows alone are put where the recording reads them."""
    state: State = counting.state
    sound, kept = state._keep_counts, state._num_accepted_tokens

    def keep_live_rows(arguments: Arguments) -> Any:
        if not state._step:
            return sound(arguments)
        num_reqs = state._step[0].num_reqs
        gathered = arguments["model_specific_attn_metadata"].num_accepted_tokens
        kept[:num_reqs].copy_(gathered[:num_reqs])
        return kept

    state._keep_counts = keep_live_rows
    padded = _key(counting).num_reqs
    shown = rf"num_accepted_tokens\[\({padded},\)"
    with pytest.raises(ParityError, match=shown) as caught:
        check_step(counting, _batch(counting, seed=3))
    assert "num_accepted_tokens[(0,)" not in str(caught.value)


def test_unrecorded_step_of_recoverssm_is_caught(committing: Subject) -> None:
    """``record_step`` is skipped where a replay served the step."""
    state: State = committing.state
    kept = state.recoverssm
    sound = kept.record_step

    def record_eager_steps(metadata: Any, *rest: Any, **kwargs: Any) -> None:
        recordings = state.graphs.recordings.values()
        if all(metadata is not it.attn_metadata for it in recordings):
            sound(metadata, *rest, **kwargs)

    kept.record_step = record_eager_steps
    with pytest.raises(ParityError, match=r"recoverssm\.\[0\]\.num_decodes: absent"):
        check_step(committing, _batch(committing, seed=3))


def _key(subject: Subject) -> GraphKey:
    """The smallest one of two rows or more, and padding."""
    padded = [
        it for it in subject.graph_keys if 1 < it.num_reqs < it.num_reqs_after_padding
    ]
    return min(padded)


def _batch(subject: Subject, seed: int) -> DecodeBatch:
    """Unequal rows, in another order than the state's."""
    key = _key(subject)
    rows = range(key.num_reqs)
    lengths = tuple(5 + 4 * row + seed for row in rows)
    return DecodeBatch(key, lengths, tuple(reversed(rows)), seed=seed)


def _recorded_by(subject: Subject, seam: Seam) -> State:
    """The subject's eager state, recorded by another seam."""
    whole: State = subject.state
    own: Specialization = whole._specialization

    class Adopted(type(subject.eager_state)):  # type: ignore[misc]
        """Takes over the buffers of a state where its base would make its own."""

        def __init__(self) -> None:
            self.__dict__.update(vars(subject.eager_state))

    specialization = Specialization(
        full_mode=own.full_mode,
        make_recorder=own.make_recorder,
        graph_keys=own.graph_keys,
        seam=seam,
    )
    state = specialize(Adopted, specialization)()
    state.capture_inner_cudagraphs(
        subject.input_buffers,
        subject.block_tables,
        subject.attn_groups,
        subject.kv_cache_config,
    )
    return state
