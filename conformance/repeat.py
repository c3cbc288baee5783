"""All that the snippet of a failed comparison needs, in one import."""

from graphparity.conformance.checks import check_history, check_step
from graphparity.conformance.decode_batches import (
    DecodeBatch,
    DummyBatch,
    EagerBatch,
    Finished,
    NewKVCache,
    PrefillBatch,
    RecordedAgain,
    UnrecordedBatch,
    VarlenBatch,
)
from graphparity.conformance.reference_check import check_eager_equals_reference
from graphparity.conformance.subjects.builder_subject import builder_subject
from graphparity.conformance.subjects.registry import fresh_subject, load_subject
from graphparity.fastpath.graph_key import GraphKey

__all__ = [
    "DecodeBatch",
    "DummyBatch",
    "EagerBatch",
    "Finished",
    "GraphKey",
    "NewKVCache",
    "PrefillBatch",
    "RecordedAgain",
    "UnrecordedBatch",
    "VarlenBatch",
    "builder_subject",
    "check_eager_equals_reference",
    "check_history",
    "check_step",
    "fresh_subject",
    "load_subject",
]
