"""What a FULL forward graph reads, against what a replay fills.

A forward graph is captured over the metadata of ``prepare_attn(mode NONE,
for_capture=True)`` and reads those addresses at every later step.
"""

from collections.abc import Iterable

from graphparity.conformance import comparer
from graphparity.conformance.checks import build_step, is_outside, span
from graphparity.conformance.comparer import Difference
from graphparity.conformance.decode_batches import DecodeBatch
from graphparity.conformance.parity_errors import raise_found
from graphparity.conformance.staging import stage, stage_capture
from graphparity.conformance.subjects.subject import Subject
from graphparity.fastpath.graph_key import GraphKey


def rungs(keys: Iterable[GraphKey]) -> list[GraphKey]:
    """The keys without padding: the shapes that forward graphs are captured at."""
    return [key for key in keys if key.num_reqs == key.num_reqs_after_padding]


def captures_read_compared_memory(subject: Subject) -> None:
    """What a forward graph captured over a key's rung reads is memory in which a replay
    is compared with the eager build, at the addresses the replay fills.

    Raises:
        ParityError: some tensor of a capture lies elsewhere.
    """
    found = [
        Difference(f"{key}: {it.path}", it.actual, it.expected)
        for key in rungs(subject.graph_keys)
        for it in capture_differences(subject, key)
    ]
    raise_found(subject, "what a captured forward graph reads", found)


def capture_differences(subject: Subject, rung: GraphKey) -> list[Difference]:
    """Tensors of the capture's metadata that lie where no replay is compared, or
    that the replay of the rung has elsewhere.

    ``replay_start`` is read from the builder's constant zeros by a capture and from
    the state's own zeros by a step. Memory is left as the replay left it, for the state
    remembers what it uploaded.
    """
    captured = comparer.leaves(stage_capture(subject, rung).run(subject, subject.state))
    batch = DecodeBatch(
        rung,
        (subject.limits.max_model_len,) * rung.num_reqs,
        tuple(range(rung.num_reqs)),
    )
    replayed = build_step(subject, stage(subject, batch), subject.state).leaves
    compared = subject.memory.keys() - subject.branch_maps
    spans = [span(subject.memory[path]) for path in compared]
    maps = [span(subject.memory[path]) for path in subject.branch_maps]
    outside = [
        Difference(path, "outside the compared memory", "inside it")
        for path, leaf in captured.items()
        if leaf.is_device and is_outside(leaf.address, spans)
    ]
    moved = [
        difference
        for path, difference in comparer.moved(replayed, captured).items()
        if captured[path].is_device
        and not path.endswith("replay_start")
        and replayed[path].is_tensor
        and is_outside(replayed[path].address, maps)
    ]
    absent = [
        Difference(path, "absent from the replay", "the captured tensor")
        for path, leaf in captured.items()
        if leaf.is_device and not (path in replayed and replayed[path].is_tensor)
    ]
    return outside + absent + moved
