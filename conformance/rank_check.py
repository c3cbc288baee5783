"""Two simulated ranks record alike, and agree on the padding of every step.

Under data parallelism all ranks of a step must run the same graphs, so what a rank
decides may follow from shared state alone. The second rank is a subject of its own,
made with ``RANK`` set as a launcher sets it. Steps are padded as vLLM's ranks agree
(``v1/worker/gpu/dp_utils.py``): each asks dispatch with its own requests and the most
tokens of any.
"""

import os
from unittest import mock

from graphparity.conformance.checks import check_step
from graphparity.conformance.comparer import Difference
from graphparity.conformance.decode_batches import UnrecordedBatch
from graphparity.conformance.parity_errors import raise_found
from graphparity.conformance.recording_again import batch_of, nodes_of, recordings_of
from graphparity.conformance.subjects.registry import fresh_subject
from graphparity.conformance.subjects.subject import Subject
from graphparity.conformance.tally import Tally
from graphparity.fastpath.graph_key import GraphKey

REQUESTS_OF_RANKS = ((3, 5), (1, 8), (2, 2), (5, 3))
"""Requests of ranks 0 and 1 in one step."""


def ranks_agree(subject: Subject, tally: Tally) -> None:
    """Both ranks record the same keys and nodes in the same order; each serves its part
    of a step at the padding that both agree on, as its eager build does.

    Raises:
        ParityError: they do not.
    """
    with mock.patch.dict(os.environ, RANK="1"):
        other = fresh_subject(subject.name, subject.recorder.name)
    raise_found(subject, "the recordings of two ranks", _unlike(subject, other))
    for num_reqs in REQUESTS_OF_RANKS:
        keys = agreed_keys(subject, num_reqs)
        for rank, key in zip((subject, other), keys, strict=True):
            batch = batch_of(key, rank.limits.max_model_len)
            is_recorded = key in rank.graph_keys
            check_step(rank, batch if is_recorded else UnrecordedBatch(batch), tally)


def agreed_keys(subject: Subject, num_reqs: tuple[int, ...]) -> list[GraphKey]:
    """The key of each rank's part of a step of so many requests."""
    query_len = subject.limits.query_len
    most = max(num_reqs) * query_len
    keys = []
    for count in num_reqs:
        answer = subject.dispatch(count, most, query_len, 0)
        assert answer.num_reqs is not None, f"no FULL graph holds {most} tokens"
        keys.append(
            GraphKey(count, answer.num_reqs, count * query_len, answer.num_tokens)
        )
    assert len({key.rung for key in keys}) == 1, f"ranks are padded apart: {keys}"
    return keys


def _unlike(first: Subject, second: Subject) -> list[Difference]:
    nodes, others = (nodes_of(recordings_of(rank)) for rank in (first, second))
    if len(nodes) != len(others):
        return [Difference("recordings", f"{len(others)} on rank 1", str(len(nodes)))]
    order = [
        Difference(f"recording {index}", f"{there} on rank 1", str(here))
        for index, (here, there) in enumerate(zip(nodes, others, strict=True))
        if here != there
    ]
    return order or [
        Difference(str(key), "recorded otherwise on rank 1", "as on rank 0")
        for key in nodes
        if nodes[key] != others[key]
    ]
