"""The checks of one step of a subject, each raising one error with all it found.

Order of a comparison: stage the inputs, poison the builders' outputs, run the state
under test, take the memory image, go back to the image before, build eagerly, and
compare. Eager first would hide a missing write. Afterwards memory is left as the
state under test left it, so that a history goes on from what it really did.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from graphparity.conformance import comparer
from graphparity.conformance.attention_groups import refused_groups
from graphparity.conformance.comparer import Difference, Leaf
from graphparity.conformance.decode_batches import (
    DecodeBatch,
    Event,
    Finished,
    NewKVCache,
    RecordedAgain,
    Step,
    seed_of,
)
from graphparity.conformance.memory import (
    MemoryImage,
    changed_paths,
    image_of,
    poison,
    restore,
)
from graphparity.conformance.parity_errors import raise_differences
from graphparity.conformance.staging import StagedStep, stage
from graphparity.conformance.subjects.subject import Subject
from graphparity.conformance.tally import Tally
from graphparity.fastpath.decode_batch import worst_case_bounds
from graphparity.fastpath.proving.fresh_memory import (
    build_over_fills,
    define_as,
)


@dataclass(frozen=True)
class BuiltStep:
    """What one build of a step returned and left in memory."""

    leaves: dict[str, Leaf]
    image: MemoryImage
    num_replays: int
    """Launches of a recording; 1 as well for the return of metadata whose recording
    needs no launch."""


def check_step(subject: Subject, step: Step, tally: Tally | None = None) -> None:
    """The state under test must leave what an eager build of ``step`` leaves.

    A decode step must have been replayed, any other must not.

    Raises:
        ParityError: the comparison failed; every differing path is listed.
    """
    _check(
        subject,
        step,
        tally,
        lambda: f"check_step({subject.expression}, {step!r})",
    )


def check_history(
    subject: Subject, history: Sequence[Step | Event], tally: Tally | None = None
) -> None:
    """As ``check_step`` for every step of a history, one after the other.

    Raises:
        ParityError: as ``check_step``; the snippet repeats the history so far.
    """
    for end, item in enumerate(history, start=1):
        if isinstance(item, Event):
            bring_about(subject, item)
        else:
            check_next_step(subject, item, history[: end - 1], tally)


def check_next_step(
    subject: Subject,
    step: Step,
    before: Sequence[Step | Event],
    tally: Tally | None = None,
) -> None:
    """As ``check_step``, after a history that passed.

    Raises:
        ParityError: as ``check_step``; the snippet repeats the history with the step.
    """

    def call() -> str:
        return f"check_history({subject.expression}, {[*before, step]!r})"

    _check(subject, step, tally, call, len(before) + 1)


def bring_about(subject: Subject, event: Event) -> None:
    """Let the state under test and its eager twin see what lies between two steps."""
    states: list[Any] = [subject.state, subject.eager_state]
    match event:
        case Finished():
            for state in states:
                state.remove_request(f"request-{event.req_index}")
        case NewKVCache():
            for state in states:
                state.initialize_kv_cache(subject.kv_cache_config, subject.block_tables)
        case RecordedAgain():
            subject.record()


def _check(
    subject: Subject,
    step: Step,
    tally: Tally | None,
    call: Callable[[], str],
    item: int | None = None,
) -> None:
    staged = stage(subject, step)
    poison_outputs(subject, step)
    before = image_of(subject.memory)
    actual = build_step(subject, staged, subject.state)
    expected = _build_eagerly(subject, staged, before, actual)
    if isinstance(step, DecodeBatch):
        expected = _with_recorded_bounds(
            subject, step, staged, before, actual, expected
        )
    restore(subject.memory, actual.image)
    found = _replay_differences(step, actual)
    is_decode = isinstance(step, DecodeBatch)
    worst_case = subject.limits.max_model_len if is_decode else None
    found += compare_builds(subject, actual, expected, worst_case)
    if isinstance(step, DecodeBatch):
        found += _input_differences(subject, before, actual.image)
        found += _place_differences(subject, step, actual, expected)
    if found:
        title = "the state under test against the eager build"
        raise_differences(subject, step, found, title=title, call=call(), item=item)
    if tally is not None:
        _count(subject, step, actual, expected, tally)


def _count(
    subject: Subject, step: Step, actual: BuiltStep, expected: BuiltStep, tally: Tally
) -> None:
    """Count a step that passed, by key and group, and what its recording froze."""
    groups = subject.group_of_path
    num_fields = groups.count([*expected.leaves, *expected.image])
    if not isinstance(step, DecodeBatch):
        tally.count_batch(None, num_fields)
        return
    refused = refused_groups(subject.state)
    recorded = [
        name
        for index, names in enumerate(groups.of_kv_cache_group)
        if index not in refused
        for name in names
    ]
    tally.count_batch(step.key, num_fields)
    tally.count_decode_step(step.key, actual.num_replays, recorded)
    for path, leaf in actual.leaves.items():
        layer = groups.layer_of(path)
        if layer is not None and groups[path] in recorded:
            name = path.removeprefix(layer).removeprefix(".")
            tally.note_frozen(step.key, groups[path], name, _shown(leaf))


def _shown(leaf: Leaf) -> str:
    """What the metadata's reader finds on the host: a value, or a tensor's layout."""
    if leaf.place is None:
        return repr(leaf.value)
    _, shape, _, dtype = leaf.place
    if leaf.is_host:
        return repr(leaf.value.tolist())
    return f"{str(dtype).removeprefix('torch.')}{[*shape]}"


def _build_eagerly(
    subject: Subject, staged: StagedStep, before: MemoryImage, actual: BuiltStep
) -> BuiltStep:
    """The eager build from ``before``; elements that it leaves undefined, which are
    found on a GPU by building twice, hold what ``actual`` has there.
    """

    def build() -> BuiltStep:
        restore(subject.memory, before)
        return build_step(subject, staged, subject.eager_state)

    device = subject.input_buffers.positions.device
    return _defined(actual, *build_over_fills([device], build))


def _with_recorded_bounds(
    subject: Subject,
    step: DecodeBatch,
    staged: StagedStep,
    before: MemoryImage,
    actual: BuiltStep,
    expected: BuiltStep,
) -> BuiltStep:
    """``expected``, with what follows a bound as the recording's bounds make it.

    Where such a field or buffer differs from the eager build's, the step is built
    eagerly once more, with the host bounds that its key is recorded with.
    """
    fields = [
        path
        for path in _bound_affecting(expected.leaves.keys() & actual.leaves.keys())
        if comparer.differences(
            {path: actual.leaves[path]}, {path: expected.leaves[path]}
        )
    ]
    buffers = _bound_affecting(changed_paths(actual.image, expected.image))
    if not (fields or buffers) or not _tells_of_a_bound(subject, actual, expected):
        return expected
    bounds = worst_case_bounds(step.key, subject.limits.max_model_len)
    input_batch = replace(staged.input_batch, seq_lens_cpu_upper_bound=bounds)
    recorded = replace(staged, input_batch=input_batch)
    as_recorded = _build_eagerly(subject, recorded, before, actual)
    return replace(
        expected,
        leaves=expected.leaves | {path: as_recorded.leaves[path] for path in fields},
        image={**expected.image, **{it: as_recorded.image[it] for it in buffers}},
    )


def _tells_of_a_bound(subject: Subject, actual: BuiltStep, expected: BuiltStep) -> bool:
    """Whether the metadata tells its readers of a bound that is frozen at its worst
    case, and is another in the eager build.
    """
    return any(
        comparer.field_class(path, ()) is comparer.FieldClass.BOUND
        and leaf.value == subject.limits.max_model_len
        and expected.leaves[path].value != leaf.value
        for path, leaf in actual.leaves.items()
        if path in expected.leaves
    )


def _bound_affecting(paths: Iterable[str]) -> list[str]:
    kind = comparer.FieldClass.BOUND_AFFECTING
    return [path for path in sorted(paths) if comparer.field_class(path, ()) is kind]


def _defined(actual: BuiltStep, first: BuiltStep, second: BuiltStep) -> BuiltStep:
    image = {
        path: define_as(actual.image[path], content, second.image[path])
        for path, content in first.image.items()
    }
    leaves = dict(first.leaves)
    for path, leaf in first.leaves.items():
        others = [it.leaves.get(path) for it in (actual, second)]
        if leaf.is_tensor and all(other and other.is_tensor for other in others):
            values = [other.value for other in others if other]
            value = define_as(values[0], leaf.value, values[1])
            leaves[path] = replace(leaf, value=value)
    return replace(first, image=image, leaves=leaves)


def build_step(subject: Subject, staged: StagedStep, state: object) -> BuiltStep:
    """Run ``state`` on a staged step, and copy out what it did."""
    subject.take_left_behind()
    replays_before = subject.recorder.num_replays
    attn_metadata = staged.run(subject, state)
    num_launched = subject.recorder.num_replays - replays_before
    return BuiltStep(
        comparer.leaves({**attn_metadata, **subject.take_left_behind()}),
        image_of(subject.memory),
        num_launched or int(subject.recorder.served_without_launch(attn_metadata)),
    )


def poison_outputs(subject: Subject, step: Step) -> None:
    """Fill what the builders and the staging write with values drawn from the step's
    seed.
    """
    paths = sorted(subject.builder_outputs | subject.staging_buffers)
    poison(subject.memory, paths, seed_of(step), subject.limits.max_num_reqs)


def compare_builds(
    subject: Subject, actual: BuiltStep, expected: BuiltStep, worst_case: int | None
) -> list[Difference]:
    """Differences of what was returned and of all device memory.

    A recording freezes its bounds at ``worst_case``; None where nothing is replayed.
    """
    found = comparer.differences(
        actual.leaves,
        expected.leaves,
        stand_in_fields=subject.stand_in_fields,
        worst_case=worst_case,
    )
    one_sided = subject.branch_maps | subject.staging_buffers
    for path in sorted(expected.image.keys() - one_sided):
        found += comparer.differences(
            {path: Leaf(actual.image[path], ())},
            {path: Leaf(expected.image[path], ())},
        )
    return found


def _replay_differences(step: Step, actual: BuiltStep) -> list[Difference]:
    expected = 1 if isinstance(step, DecodeBatch) else 0
    if actual.num_replays == expected:
        return []
    return [
        Difference("replays of a recording", str(actual.num_replays), str(expected))
    ]


def _input_differences(
    subject: Subject, before: MemoryImage, after: MemoryImage
) -> list[Difference]:
    """Buffers written that are neither outputs nor declared to be written too."""
    allowed = subject.builder_outputs | subject.also_written | subject.staging_buffers
    return [
        Difference(path, "written", "left as it was")
        for path in sorted(changed_paths(before, after) - allowed)
    ]


def _place_differences(
    subject: Subject, step: DecodeBatch, actual: BuiltStep, expected: BuiltStep
) -> list[Difference]:
    """Replayed tensors must lie in declared memory, always at the same place, and
    where the eager build's lie; only a forked branch's own map may lie elsewhere.
    """
    spans = [span(tensor) for tensor in subject.memory.values()]
    maps = [span(subject.memory[path]) for path in subject.branch_maps]
    addresses = {
        path: leaf.address for path, leaf in actual.leaves.items() if leaf.is_device
    }
    outside = [
        Difference(path, "outside the builders' buffers", "inside them")
        for path, address in addresses.items()
        if is_outside(address, spans)
    ]
    first = subject.addresses.setdefault(step.key, addresses)
    moved = [
        Difference(path, f"replayed at {address:#x}", f"at {first.get(path, 0):#x}")
        for path, address in addresses.items()
        if first.get(path) != address
    ]
    elsewhere = [
        difference
        for path, difference in comparer.moved(actual.leaves, expected.leaves).items()
        if is_outside(addresses.get(path, 0), maps)
    ]
    return outside + moved + elsewhere


def is_outside(address: int, spans: Iterable[tuple[int, int]]) -> bool:
    """Whether ``address`` lies in none of the spans."""
    return not any(begin <= address < end for begin, end in spans)


def span(tensor: torch.Tensor) -> tuple[int, int]:
    """The addresses [begin, end) of a whole buffer."""
    begin = tensor.data_ptr()
    return begin, begin + max(1, tensor.numel() * tensor.element_size())
