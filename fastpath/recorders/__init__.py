"""Recorders: one protocol, and CUDA-graph semantics emulated on CPU tensors."""

from graphparity.fastpath.recorders.emulated import (
    POISON_BYTE,
    EmulatedGraph,
    EmulatedRecorder,
)
from graphparity.fastpath.recorders.nodes import Node, NodeKind
from graphparity.fastpath.recorders.protocol import (
    CaptureError,
    RecordedGraph,
    Recorder,
)

__all__ = [
    "POISON_BYTE",
    "CaptureError",
    "EmulatedGraph",
    "EmulatedRecorder",
    "Node",
    "NodeKind",
    "RecordedGraph",
    "Recorder",
]
