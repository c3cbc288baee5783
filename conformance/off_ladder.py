"""Decode steps of more requests than the last FULL graph holds.

An operator may give capture sizes that end below ``max_num_seqs``, or between two
whole requests. What dispatch answers above the last rung is no FULL graph: such a step
must be built eagerly, equal eager, and be counted, for nothing else shows its cost.
"""

from typing import Any

from graphparity.conformance.checks import check_step
from graphparity.conformance.comparer import Difference
from graphparity.conformance.decode_batches import DecodeBatch, EagerBatch
from graphparity.conformance.parity_errors import raise_found
from graphparity.conformance.recording_again import batch_of
from graphparity.conformance.subjects.subject import Subject
from graphparity.conformance.tally import Tally
from graphparity.fastpath.graph_key import GraphKey
from graphparity.fastpath.metadata_graphs import EagerReason


def counts_off_the_ladder(subject: Subject) -> range:
    """The request counts that the subject says no FULL graph holds."""
    most = subject.limits.max_num_reqs
    return range((subject.largest_rung or most) + 1, most + 1)


def step_off_the_ladder(subject: Subject, batch: DecodeBatch) -> EagerBatch:
    """The step as dispatch serves it, of a batch that no FULL graph holds."""
    key, modes = batch.key, subject.cudagraph_modes
    answer = subject.dispatch(key.num_reqs, key.num_tokens, key.query_len, 0)
    return EagerBatch(batch, is_piecewise=answer.cg_mode is modes.PIECEWISE)


def key_off_the_ladder(subject: Subject, num_reqs: int) -> GraphKey:
    """The sizes of such a step; it has no recording.

    Raises:
        AssertionError: dispatch serves it by a FULL graph.
    """
    query_len = subject.limits.query_len
    num_tokens = num_reqs * query_len
    answer = subject.dispatch(num_reqs, num_tokens, query_len, 0)
    assert answer.cg_mode is not subject.cudagraph_modes.FULL, (
        f"a FULL graph of {answer.num_reqs} requests holds {num_reqs}, which is more "
        f"than largest_rung={subject.largest_rung} of {subject.name}"
    )
    padded_reqs = num_reqs if answer.num_reqs is None else answer.num_reqs
    return GraphKey(num_reqs, padded_reqs, num_tokens, answer.num_tokens)


def steps_off_the_ladder_are_eager(subject: Subject, tally: Tally) -> None:
    """One step of each count: eager, equal to eager, and counted as not FULL by a state
    that counts.

    Raises:
        ParityError: one is not.
    """
    for num_reqs in counts_off_the_ladder(subject):
        key = key_off_the_ladder(subject, num_reqs)
        batch = batch_of(key, subject.limits.max_model_len)
        before = _num_not_full(subject)
        check_step(subject, step_off_the_ladder(subject, batch), tally)
        counted = _num_not_full(subject) - before
        if counted != 1 and vars(subject.state).get("graphs"):
            found = [Difference("eager steps counted as not FULL", str(counted), "1")]
            raise_found(subject, f"a step of {num_reqs} requests", found)


def _num_not_full(subject: Subject) -> int:
    """Steps that the state counted as not FULL; 0 of a state that does not count."""
    graphs: Any = vars(subject.state).get("graphs")
    return graphs.eager_steps[EagerReason.NOT_FULL] if graphs else 0
