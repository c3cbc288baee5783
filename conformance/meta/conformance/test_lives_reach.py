"""The random lives of requests come to every corner that a single step cannot show.

The lives are the suite's own, drawn without the checks of their steps: what is asked is
whether some life gets there.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from unittest import mock

import pytest
from hypothesis import HealthCheck, Phase, settings

from graphparity.conformance import state_machine
from graphparity.conformance.decode_batches import (
    DecodeBatch,
    DummyBatch,
    EagerBatch,
    Event,
    Finished,
    NewKVCache,
    PrefillBatch,
    RecordedAgain,
    Step,
    UnrecordedBatch,
)
from graphparity.conformance.profile import NUM_RULES
from graphparity.conformance.subjects.registry import fresh_subject
from graphparity.conformance.tally import Tally

Life = Sequence[Step | Event]

ROUNDS = 6
"""Of lives, before a corner counts as out of reach: what is drawn first differs between
an installed suite and a source tree, whose constants Hypothesis tries as well."""
LIVES = settings(
    max_examples=80,
    stateful_step_count=NUM_RULES,
    phases=[Phase.generate],
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@cache
def lives_of(name: str, seed: int) -> list[Life]:
    """What a round of random lives of a subject does; nothing is built or recorded."""
    lives: list[Life] = []

    def end(life: state_machine.EngineLife) -> None:
        lives.append(life._history)

    with (
        mock.patch.object(state_machine, "check_next_step"),
        mock.patch.object(state_machine, "bring_about"),
        mock.patch.object(state_machine.EngineLife, "teardown", end),
    ):
        subject = fresh_subject(name)
        state_machine.run_state_machine(
            subject, Tally(), LIVES, releases=True, seed=seed
        )
    return lives


def decodes(life: Life) -> list[DecodeBatch]:
    """The decode steps that a recording serves, in order."""
    return [step for step in life if isinstance(step, DecodeBatch)]


def triples(life: Life) -> Iterator[tuple[Step | Event, Step | Event, Step | Event]]:
    """Three things that happen one after the other."""
    return zip(life, life[1:], life[2:], strict=False)


def big_small_padded(life: Life) -> bool:
    """A large step, a small one, and one in between, the padding of which was live."""
    return any(
        first.key.num_reqs > third.key.num_reqs > second.key.num_reqs
        and third.key.num_reqs < third.key.num_reqs_after_padding
        for first, second, third in zip(
            decodes(life), decodes(life)[1:], decodes(life)[2:], strict=False
        )
    )


def leaves_mid_batch(life: Life) -> bool:
    """A request ends, neither the first nor the last of the batch that goes on."""
    return any(
        isinstance(before, DecodeBatch)
        and isinstance(event, Finished)
        and isinstance(after, DecodeBatch)
        and event.req_index in before.req_state_indices[1:-1]
        and event.req_index not in after.req_state_indices
        for before, event, after in triples(life)
    )


def row_taken_by_another(life: Life) -> bool:
    """A row of the state that a finished request gave up is in use again."""
    ended: set[int] = set()
    for item in life:
        if isinstance(item, Finished):
            ended.add(item.req_index)
        elif isinstance(item, DecodeBatch) and ended & {*item.req_state_indices}:
            return True
    return False


def blocks_reused(life: Life) -> bool:
    """A block that one request held is another's in a later step."""
    holder: dict[tuple[int, int], int] = {}
    for step in life:
        if not isinstance(step, DecodeBatch | PrefillBatch):
            continue
        assert step.block_ids is not None
        for group, of_requests in enumerate(step.block_ids):
            for row, blocks in zip(step.req_state_indices, of_requests, strict=True):
                for block in blocks:
                    if holder.setdefault((group, block), row) != row:
                        return True
    return False


def resumed_after_preemption(life: Life) -> bool:
    """A request that decoded is a prompt again, and then decodes again."""
    decoded, resumed = set(), set()
    for step in life:
        if isinstance(step, Finished):
            decoded.discard(step.req_index)
            resumed.discard(step.req_index)
        elif isinstance(step, PrefillBatch):
            resumed |= decoded & {*step.req_state_indices}
        elif isinstance(step, DecodeBatch):
            if resumed & {*step.req_state_indices}:
                return True
            decoded |= {*step.req_state_indices}
    return False


def padding_held_live_rows(life: Life) -> bool:
    """The padded rows of a step were live in the last step of its rung."""
    return any(
        first.key.rung == second.key.rung
        and second.key.num_reqs < first.key.num_reqs
        and second.key.num_reqs < second.key.num_reqs_after_padding
        for first, second in pairwise(decodes(life))
    )


def keys_of_one_rung_alternate(life: Life) -> bool:
    """Two recordings over the same buffers, by turns."""
    return any(
        first.key == third.key != second.key and first.key.rung == second.key.rung
        for first, second, third in zip(
            decodes(life), decodes(life)[1:], decodes(life)[2:], strict=False
        )
    )


def prompts_shaped_like_a_decode(life: Life) -> bool:
    """Chunks that a FULL graph serves, and a decode step of the same rung next."""
    return any(
        isinstance(first, PrefillBatch)
        and first.full_key is not None
        and isinstance(second, DecodeBatch)
        and first.full_key.rung == second.key.rung
        for first, second in pairwise(life)
    )


def dummy_run_between(life: Life) -> bool:
    """An idle rank's step between two decode steps of one key."""
    return any(
        isinstance(first, DecodeBatch)
        and isinstance(second, DummyBatch)
        and isinstance(third, DecodeBatch)
        and first.key == third.key
        for first, second, third in triples(life)
    )


def recorded_again(life: Life) -> bool:
    """Recorded, released, served eagerly, and recorded again: all with decode steps."""
    kinds = [type(item) for item in life]
    order = [DecodeBatch, NewKVCache, UnrecordedBatch, RecordedAgain, DecodeBatch]
    position = 0
    for kind in kinds:
        position += position < len(order) and kind is order[position]
    return position == len(order)


def longest_sequence(life: Life) -> bool:
    """A request grows to the model's length while another is short."""
    return any(
        max(step.seq_lens) == 64 and min(step.seq_lens) < 32 for step in decodes(life)
    )


def off_the_ladder_between(life: Life) -> bool:
    """A step of more requests than the last FULL graph holds, between two it holds."""
    return any(
        isinstance(first, DecodeBatch)
        and isinstance(second, EagerBatch)
        and second.batch.key.num_reqs > 8
        for first, second in pairwise(life)
    ) and any(
        isinstance(first, EagerBatch) and isinstance(second, DecodeBatch)
        for first, second in pairwise([it for it in life if isinstance(it, Step)])
    )


def key_of_a_gap(life: Life) -> bool:
    """A rung of 6 requests, which no capture size divided by 3 tokens is."""
    return any(step.key[:2] == (4, 6) for step in decodes(life))


CORNERS: dict[Callable[[Life], bool], str] = {
    big_small_padded: "torch-decode:2",
    leaves_mid_batch: "torch-decode:2",
    row_taken_by_another: "torch-decode:2",
    blocks_reused: "torch-decode:2",
    resumed_after_preemption: "torch-decode:2",
    padding_held_live_rows: "torch-decode:2",
    keys_of_one_rung_alternate: "torch-decode:2",
    prompts_shaped_like_a_decode: "torch-decode:2",
    dummy_run_between: "torch-decode:2",
    recorded_again: "torch-decode:2",
    longest_sequence: "torch-decode:2",
    key_of_a_gap: "torch-decode-off-ladder:3",
    off_the_ladder_between: "torch-decode-off-ladder:3",
}
"""Corner -> the subject whose lives must come to it."""


@pytest.mark.parametrize(
    ("corner", "name"), CORNERS.items(), ids=[it.__name__ for it in CORNERS]
)
def test_some_life_reaches(corner: Callable[[Life], bool], name: str) -> None:
    """And not every one does, so that it is a corner."""
    rounds = ([corner(life) for life in lives_of(name, it)] for it in range(ROUNDS))
    found = next((found for found in rounds if any(found)), [])
    assert found
    assert not all(found)
