"""A subject whose state is recorded once more, in another way than its own.

Its builds are compared with the serial eager build. Two things may differ then: which
builders' token-to-request maps are filled, but for the one that a forward graph reads,
and where the metadata finds them. The values found there may not.
"""

from dataclasses import replace
from typing import Any

from graphparity.conformance.attention_groups import refused_groups
from graphparity.conformance.capture_check import rungs
from graphparity.conformance.checks import is_outside, span
from graphparity.conformance.comparer import leaves
from graphparity.conformance.memory import image_of, restore
from graphparity.conformance.staging import stage_capture
from graphparity.conformance.subjects.subject import MeteredRecorder, Subject
from graphparity.fastpath.fork_decision import Forking
from graphparity.fastpath.graph_key import GraphKey
from graphparity.fastpath.specialize import Specialization, specialize

MAP_NAMES = frozenset({"token_to_req_indices", "req_id_per_token_buffer"})
"""Names of builders' token-to-request maps."""


def recorded_groups(subject: Subject) -> list[int]:
    """The KV-cache groups that the state of ``specialize`` records; none of another
    state.
    """
    if not hasattr(subject.state, "_specialization"):
        return []
    return sorted({*range(len(subject.attn_groups))} - refused_groups(subject.state))


def forked(subject: Subject, keys: tuple[GraphKey, ...], **changes: Any) -> Subject:
    """``subject`` with a newly recorded state whose builds fork as far as they can.

    Args:
        subject: whose memory the state shares, as ``recorded_anew`` says.
        keys: what it records.
        changes: of its ``Specialization``, besides.
    """
    return recorded_anew(subject, keys, forking=Forking.ALWAYS, **changes)


def recorded_anew(
    subject: Subject, keys: tuple[GraphKey, ...], **changes: Any
) -> Subject:
    """``subject`` with a newly recorded state of another ``Specialization``.

    The state shares all memory with the subject's own, which must run no step as long
    as this one is in use.

    Args:
        subject: one of ``specialize``.
        keys: what the state records.
        changes: fields of its ``Specialization`` that differ from the subject's own.
    """
    recorders: list[MeteredRecorder] = []
    whole: Any = subject.state
    own: Specialization = whole._specialization

    def recorder_of(state: object) -> MeteredRecorder:
        recorder = own.make_recorder(state)
        assert isinstance(recorder, MeteredRecorder)
        recorders.append(recorder)
        return recorder

    class Adopted(type(subject.eager_state)):  # type: ignore[misc]
        """Takes over the buffers of a state where its base would make its own."""

        def __init__(self) -> None:
            self.__dict__.update(vars(whole))

    specialization = replace(
        own, make_recorder=recorder_of, graph_keys=lambda state: keys, **changes
    )
    state = specialize(Adopted, specialization)()
    state._num_zero_replay_starts = 0
    state.capture_inner_cudagraphs(
        subject.input_buffers,
        subject.block_tables,
        subject.attn_groups,
        subject.kv_cache_config,
    )
    return replace(
        subject,
        state=state,
        recorder=recorders[0],
        graph_keys=keys,
        branch_maps=subject.branch_maps | _unread_maps(subject),
        addresses={},
    )


def _unread_maps(subject: Subject) -> set[str]:
    """The token-to-request maps that no captured forward graph reads."""
    (rung, *_) = rungs(subject.graph_keys)
    before = image_of(subject.memory)
    captured = stage_capture(subject, rung).run(subject, subject.eager_state)
    restore(subject.memory, before)
    read = [it.address for it in leaves(captured).values() if it.is_device]
    return {
        path
        for path in subject.builder_outputs
        if path.rsplit(".", 1)[-1] in MAP_NAMES
        and all(is_outside(it, [span(subject.memory[path])]) for it in read)
    }
