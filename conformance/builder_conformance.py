"""``conforms``: one metadata builder, checked in its author's own test.

    def test_my_builder_can_be_recorded() -> None:
        conforms(lambda device: MyBuilder(device, max_num_tokens=16), query_len=2)

The builder becomes a subject of the suite (``subjects/builder_subject.py``): its build
is recorded for every key, replayed on random decode batches and histories, and held to
an eager build of the same step by ``check_step``. Every example starts from the builder
as it was when it was recorded, so that a failing one fails again.
"""

import copy
from collections.abc import Callable, Collection
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphparity.conformance.checks import check_history, check_step
from graphparity.conformance.decode_batches import (
    DecodeBatch,
    DummyBatch,
    EagerBatch,
    Step,
    StepLimits,
    decode_batches,
)
from graphparity.conformance.memory import image_of, restore
from graphparity.conformance.profile import every_key_is_recorded
from graphparity.conformance.subjects.builder_state import BuilderState
from graphparity.conformance.subjects.builder_subject import (
    BuilderFactory,
    builder_subject,
)
from graphparity.conformance.subjects.subject import Subject
from graphparity.conformance.tally import Tally
from graphparity.fastpath.graph_key import GraphKey
from graphparity.reference.attention import CommonAttentionMetadata


def conforms(
    builder_factory: BuilderFactory,
    *,
    query_len: int = 1,
    max_num_reqs: int = 8,
    max_model_len: int = 64,
    block_size: int = 8,
    constants: Collection[str] = (),
    common_attn_metadata_cls: type[Any] = CommonAttentionMetadata,
    recorder: str = "emulated",
    max_examples: int = 10,
) -> Tally:
    """Hold the replays of a builder's recorded builds to its eager builds, exactly.

    Args:
        builder_factory: makes the builder, its buffers on the device it is given, with
            room for ``max_num_reqs`` requests of ``query_len`` tokens.
        query_len: tokens of each request in a decode step.
        max_num_reqs: the most requests in a step, the largest rung of the ladder.
        max_model_len: the longest sequence, in tokens.
        block_size: tokens of a KV cache block.
        constants: names of the builder's tensors that builds read and never write; all
            others are filled with wrong values before every step.
        common_attn_metadata_cls: what ``build`` is handed; vLLM's class for a builder
            of vLLM.
        recorder: ``emulated`` needs no GPU, ``cuda`` records real CUDA graphs.
        max_examples: random batches a key, and random histories.

    Returns what was checked.

    Raises:
        ParityError: a key could not be recorded, or some step differed; Hypothesis has
            shrunk it, and the message says how to see it again.
        TypeError, ValueError: as ``builder_subject``.
    """
    subject = builder_subject(
        builder_factory,
        query_len=query_len,
        max_num_reqs=max_num_reqs,
        max_model_len=max_model_len,
        block_size=block_size,
        constants=constants,
        common_attn_metadata_cls=common_attn_metadata_cls,
        recorder=recorder,
    )
    every_key_is_recorded(subject)
    profile = settings(
        max_examples=max_examples,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    tally = Tally()
    start = _as_recorded(subject)
    for key in subject.graph_keys:
        _batches_equal_eager(subject, key, tally, start, profile)
    _histories_equal_eager(subject, tally, start, profile)
    return tally


def _as_recorded(subject: Subject) -> Callable[[], None]:
    """Puts memory and the builder's members back to what they are now."""
    state: Any = subject.state
    assert isinstance(state, BuilderState)
    members = vars(state.builder)
    image = image_of(subject.memory)
    before = _copied(members)

    def start() -> None:
        members.clear()
        members.update(_copied(before))
        restore(subject.memory, image)
        subject.addresses.clear()

    return start


def _copied(members: dict[str, Any]) -> dict[str, Any]:
    """Containers are copied, what they hold is not: buffers keep their places."""
    return {
        name: copy.copy(value) if isinstance(value, list | dict | set) else value
        for name, value in members.items()
    }


def _batches_equal_eager(
    subject: Subject,
    key: GraphKey,
    tally: Tally,
    start: Callable[[], None],
    profile: settings,
) -> None:
    @profile
    @given(batch=decode_batches(subject.limits, key))
    def check(batch: DecodeBatch) -> None:
        start()
        check_step(subject, batch, tally)

    check()


def _histories_equal_eager(
    subject: Subject, tally: Tally, start: Callable[[], None], profile: settings
) -> None:
    @profile
    @given(history=_decode_histories(subject.limits, subject.graph_keys))
    def check(history: list[Step]) -> None:
        start()
        check_history(subject, history, tally)

    check()


def _decode_histories(
    limits: StepLimits, keys: tuple[GraphKey, ...]
) -> st.SearchStrategy[list[Step]]:
    """Decode steps of any key, between dummy steps and steps that no graph serves; a
    decode step is last. Shrinks to that one alone.
    """
    decodes = st.sampled_from(keys).flatmap(lambda key: decode_batches(limits, key))
    others = st.one_of(
        decodes, st.sampled_from(keys).map(DummyBatch), decodes.map(EagerBatch)
    )
    return st.tuples(st.lists(others, max_size=5), decodes).map(
        lambda drawn: [*drawn[0], drawn[1]]
    )
