"""Faults planted in the subject's own build are refused or caught.

A build that does what a graph cannot record is refused at capture, and its steps
stay eager; a build that records something else than what it does every step is
caught by the comparison.
"""

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from graphparity.conformance.checks import check_step
from graphparity.conformance.comparer import ParityError
from graphparity.conformance.decode_batches import DecodeBatch, EagerBatch
from graphparity.conformance.subjects.registry import fresh_subject
from graphparity.conformance.subjects.subject import Subject
from graphparity.fastpath.recorders import CaptureError

Fault = Callable[[Any, dict[str, Any]], object]
"""What a faulty build does besides: takes the batch, or what the build is told of it,
and the sound metadata."""


def _reads_a_device_value(batch: Any, built: dict[str, Any]) -> object:
    return batch.seq_lens.max().item()


def _branches_on_a_device_value(batch: Any, built: dict[str, Any]) -> object:
    return 1 if batch.seq_lens[0] > 3 else 0


def _copies_pageable_memory(batch: Any, built: dict[str, Any]) -> object:
    return batch.seq_lens[:1].copy_(torch.ones(1, dtype=torch.int32))


def _makes_a_data_dependent_shape(batch: Any, built: dict[str, Any]) -> object:
    return batch.seq_lens.nonzero()


def _indexes_by_a_host_list(batch: Any, built: dict[str, Any]) -> object:
    return batch.seq_lens[[0]]


def _freezes_a_host_value(batch: Any, built: dict[str, Any]) -> object:
    bound = int(batch.seq_lens_cpu_upper_bound.max())
    return _spoiled(built).add_(bound)


_builds = count()


def _counts_its_builds(batch: Any, built: dict[str, Any]) -> object:
    return _spoiled(built).add_(next(_builds))


def _returns_a_fresh_tensor(batch: Any, built: dict[str, Any]) -> object:
    layer = next(iter(built))
    fresh = replace(built[layer], **{_spoiled_field(built): _spoiled(built) + 0})
    built[layer] = fresh
    return fresh


def _spoiled_field(built: dict[str, Any]) -> str:
    """The slots, or of metadata without them its first tensor."""
    first = next(iter(built.values()))
    tensors = [
        it.name
        for it in fields(first)
        if isinstance(getattr(first, it.name), torch.Tensor)
    ]
    return "slot_mapping" if "slot_mapping" in tensors else tensors[0]


def _spoiled(built: dict[str, Any]) -> torch.Tensor:
    tensor: torch.Tensor = getattr(next(iter(built.values())), _spoiled_field(built))
    return tensor


REFUSED = [
    _reads_a_device_value,
    _branches_on_a_device_value,
    _copies_pageable_memory,
    _makes_a_data_dependent_shape,
    _indexes_by_a_host_list,
]
CAUGHT: dict[Fault, str] = {
    _freezes_a_host_value: "{spoiled}",
    _counts_its_builds: "{spoiled}",
    _returns_a_fresh_tensor: "{spoiled}.* outside the builders' buffers",
}
"""Fault -> what the message says of the field that the fault spoils."""


@pytest.fixture(scope="module")
def faulty(shortest_subject: str, request: pytest.FixtureRequest) -> Subject:
    """A subject of this module's own, recorded anew with each fault."""
    return fresh_subject(shortest_subject, request.config.getoption("--recorder"))


@pytest.mark.parametrize("fault", REFUSED, ids=lambda fault: fault.__name__[1:])
def test_unrecordable_builds_are_refused(faulty: Subject, fault: Fault) -> None:
    """The refusal names this file's line; the step is built eagerly all the same."""
    with _planted(faulty, fault):
        refusal = _record_again(faulty)
        assert refusal is not None, "every key was recorded in spite of the fault"
        assert __file__.rsplit("/", 1)[-1] in refusal.location
        check_step(faulty, EagerBatch(_batch(faulty)))


@pytest.mark.parametrize("fault", CAUGHT, ids=lambda fault: fault.__name__[1:])
def test_unfaithful_recordings_are_caught(faulty: Subject, fault: Fault) -> None:
    """The comparison fails at the tensor that the fault spoils."""
    faulty.addresses.clear()
    with _planted(faulty, fault) as spoiled:
        assert _record_again(faulty) is None
        with pytest.raises(ParityError) as caught:
            check_step(faulty, _batch(faulty))
    (field,) = spoiled
    pattern = CAUGHT[fault].format(spoiled=field)
    assert re.search(pattern, str(caught.value)), str(caught.value)


def test_without_a_fault_the_same_step_passes(faulty: Subject) -> None:
    """What the tests above see is the fault, not the harness."""
    faulty.addresses.clear()
    assert _record_again(faulty) is None
    check_step(faulty, _batch(faulty))


def _batch(subject: Subject) -> DecodeBatch:
    """Two unequal rows, none of them at the model's length."""
    key = next(key for key in subject.graph_keys if key.num_reqs == 2)
    lengths = (subject.limits.max_model_len // 2, subject.limits.query_len + 1)
    return DecodeBatch(key, lengths, (1, 0))


@contextmanager
def _planted(subject: Subject, fault: Fault) -> Iterator[set[str]]:
    """While active, the build that the subject and its eager twin share is faulty where
    it builds the first group: other groups may be built apart from it. Gives the names
    of the fields that it spoils, or may.
    """
    spoiled: set[str] = set()
    owner, name = _build_of(subject)
    sound = getattr(owner, name)
    first_layer = subject.kv_cache_config.kv_cache_groups[0].layer_names[0]

    def build(*args: Any, **kwargs: Any) -> Any:
        built = sound(*args, **kwargs)
        if first_layer in built:
            spoiled.add(_spoiled_field(built))
            # A method takes the batch; a function that it calls, what is read of it.
            fault(args[1] if args else SimpleNamespace(**kwargs), built)
        return built

    setattr(owner, name, build)
    try:
        yield spoiled
    finally:
        setattr(owner, name, sound)


def _build_of(subject: Subject) -> tuple[Any, str]:
    """Where the shared build is looked up: in the base, or in the base's module."""
    base: Any = type(subject.eager_state)
    specialization = getattr(subject.state, "_specialization", None)
    if specialization is not None and specialization.seam.inner_call:
        return sys.modules[base.__module__], specialization.seam.inner_call
    names = ("_build_attn_metadata", "prepare_attn")
    return base, next(name for name in names if hasattr(base, name))


def _record_again(subject: Subject) -> CaptureError | None:
    """Record every key anew; the first refusal, raised or noted by the state."""
    try:
        subject.record()
    except CaptureError as error:
        return error
    graphs: Any = vars(subject.state)["graphs"]
    refusals = getattr(graphs, "refusals", {})
    return next(iter(refusals.values()), None)
