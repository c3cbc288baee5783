"""The eager build against our reference, for every field that both define.

The reference's metadata says what each field holds past its live rows; only
padding that it calls unspecified is left out of the comparison.
"""

import dataclasses
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch

from graphparity.conformance import comparer
from graphparity.conformance.checks import poison_outputs
from graphparity.conformance.comparer import Leaf
from graphparity.conformance.decode_batches import DecodeBatch, Step
from graphparity.conformance.memory import image_of, restore
from graphparity.conformance.parity_errors import raise_differences
from graphparity.conformance.staging import StagedStep, stage
from graphparity.conformance.subjects.subject import Subject
from graphparity.conformance.tally import Tally
from graphparity.reference.padding import Padding, live_of, padding_of


def check_eager_equals_reference(
    subject: Subject, step: Step, tally: Tally | None = None
) -> None:
    """The subject's eager build of ``step`` must be what the reference says.

    What both write to the step's inputs (replayed slots, lookback tokens) is
    compared as well.

    Raises:
        ParityError: every differing path, and a snippet that repeats it.
    """
    staged = stage(subject, step)
    poison_outputs(subject, step)
    before = image_of(subject.memory)
    actual = _eager_leaves(subject, staged)
    restore(subject.memory, before)
    expected = dict(_reference_leaves(subject, staged))
    found = comparer.differences(
        {
            path: _live(actual[path], rows)
            for path, (_, rows) in expected.items()
            if path in actual
        },
        {path: _live(leaf, rows) for path, (leaf, rows) in expected.items()},
        stand_in_fields=subject.stand_in_fields,
    )
    raise_differences(
        subject,
        step,
        found,
        title="the eager build against the reference",
        call=(
            f"check_eager_equals_reference(load_subject({subject.name!r}), {step!r})"
        ),
    )
    if tally is not None:
        key = step.key if isinstance(step, DecodeBatch) else None
        tally.count_batch(key, subject.group_of_path.count(expected))


def _eager_leaves(subject: Subject, staged: StagedStep) -> dict[str, Leaf]:
    inputs = subject.eager_state.prepare_inputs(staged.input_batch, subject.req_states)
    attn_metadata = staged.run(subject, subject.eager_state)
    found = comparer.leaves(attn_metadata)
    found |= comparer.leaves({f"inputs.{name}": t for name, t in inputs.items()})
    return found | comparer.leaves({"slot_mappings": staged.slot_mappings})


def _reference_leaves(
    subject: Subject, staged: StagedStep
) -> Iterator[tuple[str, tuple[Leaf, int | None]]]:
    """Path -> (leaf, how many of its leading rows to compare; None for all)."""
    reference, staged = subject.reference, _on_host(staged)
    assert reference is not None, f"{subject.name} has no reference"
    batch = staged.input_batch
    token_ids = subject.req_states.all_token_ids.gpu.cpu()
    inputs = reference.state.prepare_inputs(
        batch, SimpleNamespace(all_token_ids=SimpleNamespace(gpu=token_ids))
    )
    attn_metadata = reference.state.prepare_attn(
        batch,
        reference.modes[staged.cudagraph_mode.name],
        staged.block_tables,
        staged.slot_mappings,
        reference.attn_groups,
        reference.kv_cache_config,
        for_capture=staged.for_capture,
    )
    for name, tensor in inputs.items():
        yield f"inputs.{name}", (_leaf(tensor), None)
    yield "slot_mappings", (_leaf(staged.slot_mappings), None)
    for layer, metadata in attn_metadata.items():
        yield from _metadata_leaves(metadata, layer, batch)


def _on_host(staged: StagedStep) -> StagedStep:
    """A copy of the step in host memory, which the reference's loops read."""
    batch = staged.input_batch
    tensors = {
        name: value.to("cpu", copy=True)
        for name, value in vars(batch).items()
        if isinstance(value, torch.Tensor)
    }
    return dataclasses.replace(
        staged,
        input_batch=dataclasses.replace(batch, **tensors),
        block_tables=tuple(t.to("cpu", copy=True) for t in staged.block_tables),
        slot_mappings=staged.slot_mappings.to("cpu", copy=True),
    )


def _metadata_leaves(
    metadata: Any, path: str, batch: Any
) -> Iterator[tuple[str, tuple[Leaf, int | None]]]:
    for field in dataclasses.fields(metadata):
        value = getattr(metadata, field.name)
        if dataclasses.is_dataclass(value):
            yield from _metadata_leaves(value, f"{path}.{field.name}", batch)
        else:
            rows = _rows_to_compare(field, batch)
            yield f"{path}.{field.name}", (_leaf(value), rows)


def _rows_to_compare(field: "dataclasses.Field[Any]", batch: Any) -> int | None:
    if padding_of(field) is not Padding.UNSPECIFIED:
        return None
    return int(getattr(batch, live_of(field) or "num_tokens"))


def _leaf(value: Any) -> Leaf:
    (leaf,) = comparer.leaves({"": value}).values()
    return leaf


def _live(leaf: Leaf, rows: int | None) -> Leaf:
    if rows is None or not isinstance(leaf.value, torch.Tensor):
        return leaf
    return Leaf(leaf.value[:rows], leaf.place)
