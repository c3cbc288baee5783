"""Decode steps whose attention metadata is recorded once and replayed every step."""

from graphparity.fastpath.decode_batch import padded_decode_batch
from graphparity.fastpath.graph_key import GraphKey, keys_to_record
from graphparity.fastpath.metadata_graphs import EagerReason, MetadataGraphs
from graphparity.fastpath.prover import judge
from graphparity.fastpath.seams import Seam, whole_prepare_attn
from graphparity.fastpath.specialize import Specialization, specialize

__all__ = [
    "EagerReason",
    "GraphKey",
    "MetadataGraphs",
    "Seam",
    "Specialization",
    "judge",
    "keys_to_record",
    "padded_decode_batch",
    "specialize",
    "whole_prepare_attn",
]
