"""Faults planted in what DeepSeek-V4.1's state does around its build are caught.

Collected only for subjects of vLLM, whose process has it set up; run on DeepSeek-V4.1
at query length 2.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from graphparity.conformance.checks import check_step
from graphparity.conformance.comparer import ParityError
from graphparity.conformance.decode_batches import DecodeBatch, PrefillBatch
from graphparity.conformance.memory import image_of, restore
from graphparity.conformance.pytest_plugin import subject_names
from graphparity.conformance.reference_check import check_eager_equals_reference
from graphparity.conformance.subjects.registry import load_subject
from graphparity.conformance.subjects.subject import Subject

State = Any
"""A model state, its private parts included."""

SUBJECTS = ("deepseek-v41-blackwell:2", "deepseek-v41-hopper:2")
REPLAYING = PrefillBatch((40, 3), (100, 60), (70, 60), (2, 0), seed=5)
"""Prompt chunks, one of which replays the window before it."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The subjects asked for."""
    asked = subject_names(metafunc.config)
    names = [name for name in SUBJECTS if name in asked]
    metafunc.parametrize("replaying", names, indirect=True)


@pytest.fixture
def replaying(request: pytest.FixtureRequest) -> Iterator[Subject]:
    """A subject seen to pass the steps that show the faults; its memory is put back."""
    subject = load_subject(request.param, request.config.getoption("--recorder"))
    image = image_of(subject.memory)
    check_eager_equals_reference(subject, REPLAYING)
    check_eager_equals_reference(subject, _decode(subject))
    check_step(subject, REPLAYING)
    check_step(subject, _decode(subject))
    yield subject
    restore(subject.memory, image)


def test_lookback_off_by_one_is_caught(
    replaying: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest of the tokens before the chunk is left out."""
    state: State = replaying.eager_state
    sound = state.prepare_inputs

    def prepare(*args: Any) -> dict[str, Any]:
        inputs: dict[str, Any] = sound(*args)
        older = inputs["lookback_token_ids"].roll(-1, dims=1)
        return {**inputs, "lookback_token_ids": older}

    monkeypatch.setattr(state, "prepare_inputs", prepare)
    with pytest.raises(ParityError, match=r"inputs\.lookback_token_ids\["):
        check_eager_equals_reference(replaying, REPLAYING)


def test_a_replay_start_applied_to_a_decode_is_caught(
    replaying: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A decoding request keeps the replay start of its prompt."""
    state: State = replaying.state
    sound = state._upload_replay_start

    def upload(values: Any, num_reqs: int) -> torch.Tensor:
        starts: torch.Tensor = sound(np.where(values == 0, 3, values), num_reqs)
        return starts

    monkeypatch.setattr(state, "_num_zero_replay_starts", 0)
    monkeypatch.setattr(state, "_upload_replay_start", upload)
    with pytest.raises(ParityError, match=r"_replay_start\["):
        check_step(replaying, _decode(replaying))


def test_padding_in_a_group_without_prefix_cache_is_caught(
    replaying: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replayed tokens lose their slots in the window's group, which they rebuild."""
    state: State = replaying.eager_state
    window, cacheable = state._replay
    num_groups = len(replaying.kv_cache_config.kv_cache_groups)
    assert len(cacheable) < num_groups
    every = torch.arange(num_groups, dtype=cacheable.dtype, device=cacheable.device)
    monkeypatch.setattr(state, "_replay", (window, every))
    with pytest.raises(ParityError, match=r"slot_mappings\["):
        check_eager_equals_reference(replaying, REPLAYING)


def _decode(subject: Subject) -> DecodeBatch:
    """A padded step of unequal rows."""
    key = next(key for key in subject.graph_keys if key.num_reqs == 3)
    return DecodeBatch(key, (300, 129, 7), (1, 2, 0), seed=9)
