"""Recorders: one protocol, CUDA graphs, and their semantics emulated on CPU tensors."""

from graphparity.fastpath.recorders.cuda import (
    CudaBuildGraph,
    CudaRecorder,
    require_cuda,
)
from graphparity.fastpath.recorders.cuda_nodes import CudaNode
from graphparity.fastpath.recorders.emulated import (
    POISON_BYTE,
    EmulatedGraph,
    EmulatedRecorder,
)
from graphparity.fastpath.recorders.nodes import Node, NodeKind
from graphparity.fastpath.recorders.protocol import (
    CaptureError,
    NodeParameters,
    RecordedGraph,
    Recorder,
    ReplayTimes,
    SideStream,
)

__all__ = [
    "POISON_BYTE",
    "CaptureError",
    "CudaBuildGraph",
    "CudaNode",
    "CudaRecorder",
    "EmulatedGraph",
    "EmulatedRecorder",
    "Node",
    "NodeKind",
    "NodeParameters",
    "RecordedGraph",
    "Recorder",
    "ReplayTimes",
    "SideStream",
    "require_cuda",
]
