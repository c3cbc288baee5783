"""A subject whose state records only some of its KV-cache groups.

Its builds are compared with the serial eager build. Two things may differ then: which
builder's token-to-request map is filled, and where the metadata finds it. The values
found there may not.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from graphparity.conformance.subjects.subject import MeteredRecorder, Subject
from graphparity.fastpath.graph_key import GraphKey
from graphparity.fastpath.specialize import Specialization, specialize

MAP_NAMES = frozenset({"token_to_req_indices", "req_id_per_token_buffer"})
"""Names of builders' token-to-request maps."""


def can_be_partly_recorded(subject: Subject) -> bool:
    """Whether the state is one of ``specialize``, with groups to split."""
    return hasattr(subject.state, "_specialization") and len(subject.attn_groups) > 1


def partly_recorded(
    subject: Subject, refused: Collection[int], keys: tuple[GraphKey, ...]
) -> Subject:
    """``subject`` with a newly recorded state that builds the groups ``refused``
    eagerly.

    The state shares all memory with the subject's own, which must run no step as long
    as this one is in use.
    """
    recorders: list[MeteredRecorder] = []
    whole: Any = subject.state
    specialization: Specialization = whole._specialization

    def recorder_of(state: object) -> MeteredRecorder:
        recorder = specialization.make_recorder(state)
        assert isinstance(recorder, MeteredRecorder)
        recorders.append(recorder)
        return recorder

    def judge(state: object, attn_groups: list[Any]) -> Mapping[int, bool]:
        return {index: index not in refused for index in range(len(attn_groups))}

    class Adopted(type(subject.eager_state)):  # type: ignore[misc]
        """Takes over the buffers of a state where its base would make its own."""

        def __init__(self) -> None:
            self.__dict__.update(vars(whole))

    partly = replace(
        specialization,
        make_recorder=recorder_of,
        graph_keys=lambda state: keys,
        judge_groups=judge,
    )
    state = specialize(Adopted, partly)()
    state._num_zero_replay_starts = 0
    state.capture_inner_cudagraphs(
        subject.input_buffers,
        subject.block_tables,
        subject.attn_groups,
        subject.kv_cache_config,
    )
    maps = {
        path for path in subject.builder_outputs if path.rsplit(".", 1)[-1] in MAP_NAMES
    }
    return replace(
        subject,
        state=state,
        recorder=recorders[0],
        graph_keys=keys,
        branch_maps=subject.branch_maps | maps,
        addresses={},
    )
