"""Drawn steps and histories come to the corners that need a subject's own keys.

Its ladder decides which keys share buffers and which rungs are gaps; its groups, which
sentinels meet in one step; its dispatch, how two ranks pad a step.
"""

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import strategies as st

from graphparity.conformance.decode_batches import (
    DecodeBatch,
    Step,
    VarlenBatch,
    decode_batches,
    histories,
)
from graphparity.conformance.meta.conformance.test_strategies import reach
from graphparity.conformance.rank_check import REQUESTS_OF_RANKS, agreed_keys
from graphparity.conformance.staging import stage
from graphparity.conformance.subjects.registry import load_subject
from graphparity.conformance.subjects.subject import Subject
from graphparity.conformance.subjects.torch_decode import BLOCK_SIZE, WINDOW
from graphparity.fastpath.graph_key import GraphKey

History = list[Step]
PADDED = GraphKey(3, 4, 6, 8)


def decodes(history: History) -> list[DecodeBatch]:
    """The decode steps that a recording serves, in order."""
    return [step for step in history if isinstance(step, DecodeBatch)]


def big_small_padded(history: History) -> bool:
    """A large step, a small one, and one in between, the padding of which was live."""
    steps = decodes(history)
    return any(
        first.key.num_reqs > third.key.num_reqs > second.key.num_reqs
        and third.key.num_reqs < third.key.num_reqs_after_padding
        for first, second, third in zip(steps, steps[1:], steps[2:], strict=False)
    )


def padding_held_live_rows(history: History) -> bool:
    """A step pads the very rows that the step before, of its rung, had live."""
    return any(
        first.key.rung == second.key.rung and second.key.num_reqs < first.key.num_reqs
        for first, second in pairwise(decodes(history))
    )


def keys_of_one_buffer_alternate(history: History) -> bool:
    """Two recordings over the same buffers, by turns."""
    steps = decodes(history)
    return any(
        first.key == third.key != second.key and first.key.rung == second.key.rung
        for first, second, third in zip(steps, steps[1:], steps[2:], strict=False)
    )


def after_a_varlen_step(history: History) -> bool:
    """A step whose query lengths are only bounded came before."""
    return any(
        isinstance(first, VarlenBatch) and isinstance(second, DecodeBatch)
        for first, second in pairwise(history)
    )


HISTORY_CORNERS = (
    big_small_padded,
    padding_held_live_rows,
    keys_of_one_buffer_alternate,
    after_a_varlen_step,
)

BATCH_CORNERS: dict[str, Callable[[DecodeBatch], bool]] = {
    # A recording is made over sequences of the query length, with the model's length as
    # their bound.
    "recorded short, replayed long": lambda batch: min(batch.seq_lens) > 32,
    "recorded long, replayed short": lambda batch: max(batch.seq_lens) <= WINDOW // 2,
    "a row at a block's end and one past it": lambda batch: (
        {0, 1} <= {length % BLOCK_SIZE for length in batch.seq_lens}
    ),
    "a row that fills the window and one that leaves it": lambda batch: (
        {WINDOW, WINDOW + 1} <= {*batch.seq_lens}
    ),
    "the model's length beside a short one": lambda batch: (
        max(batch.seq_lens) == 64 and min(batch.seq_lens) <= WINDOW
    ),
}


@pytest.mark.parametrize(
    "corner", HISTORY_CORNERS, ids=[it.__name__ for it in HISTORY_CORNERS]
)
def test_histories_reach(corner: Callable[[History], bool]) -> None:
    """Over the keys of a ladder with several keys on a rung."""
    subject = load_subject("torch-decode:2")
    drawn = histories(subject.limits, subject.graph_keys)
    assert corner(reach(drawn, corner, draws=4000))


@pytest.mark.parametrize("corner", BATCH_CORNERS.values(), ids=BATCH_CORNERS)
def test_decode_batches_reach(corner: Callable[[DecodeBatch], bool]) -> None:
    """Edges and lengths of the subject itself, on a key with padding."""
    subject = load_subject("torch-decode:2")
    drawn = decode_batches(subject.limits, PADDED)
    assert corner(reach(drawn, corner, draws=4000))


@pytest.mark.parametrize("count", [(4, 6), (5, 6), (7, 8)])
def test_histories_reach_the_gaps_of_a_ladder(count: tuple[int, int]) -> None:
    """At query length 3, sizes 1 2 4 8 16 24 make rungs of 1 2 3 6 and 8 requests."""
    subject = load_subject("torch-decode:3")
    rungs = {key.num_reqs_after_padding for key in subject.graph_keys}
    assert rungs == {1, 2, 3, 6, 8}

    def steps_on_it(history: History) -> bool:
        return any(step.key[:2] == count for step in decodes(history))

    drawn = histories(subject.limits, subject.graph_keys)
    assert steps_on_it(reach(drawn, steps_on_it))


def test_seeds_reach_two_sentinels_in_one_step() -> None:
    """A live row without a ring block, whose slots are -1, beside padded rows, whose
    window lengths are 0.
    """
    subject = load_subject("torch-decode:2")

    def lacks_a_ring_block(seed: int) -> bool:
        batch = DecodeBatch(PADDED, (5, 16, 17), (3, 1, 2), seed)
        blocks = stage(subject, batch).block_tables[0][: PADDED.num_reqs, 0]
        return bool((blocks == 0).any() and (blocks != 0).any())

    assert lacks_a_ring_block(reach(st.integers(0, 2**16), lacks_a_ring_block))


RANK_CORNERS: dict[str, Callable[[Subject, list[GraphKey]], bool]] = {
    "the first rank is padded for the second": lambda subject, keys: (
        keys[0] not in subject.graph_keys and keys[1] in subject.graph_keys
    ),
    "the second rank is padded for the first": lambda subject, keys: (
        keys[1] not in subject.graph_keys and keys[0] in subject.graph_keys
    ),
    "neither is padded beyond its own rung": lambda subject, keys: all(
        key in subject.graph_keys for key in keys
    ),
    "one of them is full": lambda subject, keys: any(
        key.num_reqs == key.num_reqs_after_padding for key in keys
    ),
}


@pytest.mark.parametrize("corner", RANK_CORNERS.values(), ids=RANK_CORNERS)
def test_two_ranks_reach(corner: Callable[[Subject, list[GraphKey]], bool]) -> None:
    """Among the steps that both ranks are checked on."""
    subject = load_subject("torch-decode:2")
    found = [
        corner(subject, agreed_keys(subject, num_reqs))
        for num_reqs in REQUESTS_OF_RANKS
    ]
    assert any(found)
    assert not all(found)
