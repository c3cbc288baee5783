"""The nodes of a captured CUDA graph, read through the driver.

Needs cuda-bindings, which PyTorch's CUDA builds bring. A kernel's arguments are
bytes; what a parameter means only its kernel knows, so an argument is listed by
offset and size.
"""

import ctypes
import functools
import importlib
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from graphparity.fastpath.recorders.protocol import NodeParameters

WORD = 8
"""Bytes of an address."""


SCALAR_SIZES = (2, 4, 8)
"""Bytes of an argument that is one number or address; a functor without members has
one byte, which nobody sets.
"""


@dataclass(frozen=True)
class CudaNode:
    """One recorded device operation.

    Attributes:
        index: place in the driver's list.
        kind: "kernel", "copy", "fill", or the driver's word for anything else.
        name: the kernel's name, or what is copied between.
        grid: blocks of a kernel in x, y, z.
        arguments: (name, bytes) of each parameter; a kernel argument is named by its
            offset.
    """

    index: int
    kind: str
    name: str
    grid: tuple[int, int, int]
    arguments: tuple[tuple[str, bytes], ...]

    def parameters(self, memory: Sequence[tuple[int, int]]) -> NodeParameters:
        """Return what the node was given, addresses in device ``memory`` told apart.

        A kernel argument is read word by word: structures that a kernel takes by
        value hold pointers too. Of structures and of C++ kernels only pointers are
        told, since padding holds whatever the host's stack held.
        """
        values: list[tuple[str, Hashable]] = [("grid", self.grid)]
        pointers = []
        for name, word, is_structure in self._words():
            value = int.from_bytes(word, "little")
            if name in {"source", "destination"} or (
                len(word) == WORD and _is_inside(value, memory)
            ):
                pointers.append((name, value))
            elif not is_structure and not self._is_cpp:
                values.append((name, value))
        return NodeParameters(self.name, self.kind, "", tuple(values), tuple(pointers))

    @property
    def _is_cpp(self) -> bool:
        """Whether arguments are C++ objects, whose padding nobody sets."""
        return self.name.startswith("_Z")

    def _words(self) -> Iterator[tuple[str, bytes, bool]]:
        """(name, bytes, whether of a structure) of every word of every argument."""
        for name, argument in self.arguments:
            is_structure = len(argument) not in SCALAR_SIZES
            for begin in range(0, len(argument), WORD):
                suffix = f"+{begin}" if begin else ""
                word = argument[begin : begin + WORD]
                yield f"{name}{suffix}", word, is_structure

    def describe(self) -> str:
        """Return the node as one line of a listing."""
        return f"{self.index:3d} {self.kind:6s} {self.name} grid={self.grid}"


def nodes_of(graph: torch.cuda.CUDAGraph) -> tuple[CudaNode, ...]:
    """Every node of a graph captured with ``keep_graph=True``.

    Raises:
        RuntimeError: the driver refuses to list them.
    """
    driver = _driver()
    raw = driver.CUgraph(graph.raw_cuda_graph())
    _, count = _call(driver.cuGraphGetNodes(raw, 0))
    if not count:
        return ()
    nodes, count = _call(driver.cuGraphGetNodes(raw, count))
    return tuple(_node(index, node) for index, node in enumerate(nodes[:count]))


def _node(index: int, node: Any) -> CudaNode:
    driver = _driver()
    (kind,) = _call(driver.cuGraphNodeGetType(node))
    types = driver.CUgraphNodeType
    if kind == types.CU_GRAPH_NODE_TYPE_KERNEL:
        return _kernel_node(index, node)
    if kind == types.CU_GRAPH_NODE_TYPE_MEMCPY:
        return _copy_node(index, node)
    if kind == types.CU_GRAPH_NODE_TYPE_MEMSET:
        return _fill_node(index, node)
    word = kind.name.removeprefix("CU_GRAPH_NODE_TYPE_").lower()
    return CudaNode(index, word, word, (0, 0, 0), ())


def _kernel_node(index: int, node: Any) -> CudaNode:
    driver = _driver()
    (params,) = _call(driver.cuGraphKernelNodeGetParams(node))
    (name,) = _call(driver.cuFuncGetName(params.func))
    return CudaNode(
        index,
        "kernel",
        name.decode(),
        (params.gridDimX, params.gridDimY, params.gridDimZ),
        tuple(_kernel_arguments(params)),
    )


def _kernel_arguments(params: Any) -> Iterator[tuple[str, bytes]]:
    """(name, bytes) of each argument, from the array of argument addresses."""
    driver = _driver()
    if not int(params.kernelParams):  # passed packed, as some libraries do
        return
    addresses = ctypes.cast(int(params.kernelParams), ctypes.POINTER(ctypes.c_void_p))
    position = 0
    while True:
        error, offset, size = driver.cuFuncGetParamInfo(params.func, position)
        if error != driver.CUresult.CUDA_SUCCESS:  # there is no such argument
            return
        yield f"argument at {offset}", ctypes.string_at(addresses[position], size)
        position += 1


def _copy_node(index: int, node: Any) -> CudaNode:
    driver = _driver()
    (params,) = _call(driver.cuGraphMemcpyNodeGetParams(node))
    source = params.srcMemoryType.name.removeprefix("CU_MEMORYTYPE_").lower()
    target = params.dstMemoryType.name.removeprefix("CU_MEMORYTYPE_").lower()
    size = params.WidthInBytes * params.Height * params.Depth
    values = {
        "source": int(params.srcDevice) or int(params.srcHost or 0),
        "destination": int(params.dstDevice) or int(params.dstHost or 0),
        "nbytes": size,
    }
    kind = "host-copy" if source != "device" or target != "device" else "copy"
    return CudaNode(index, kind, f"{source} to {target}", (0, 0, 0), _packed(values))


def _fill_node(index: int, node: Any) -> CudaNode:
    driver = _driver()
    (params,) = _call(driver.cuGraphMemsetNodeGetParams(node))
    values = {
        "destination": int(params.dst),
        "value": params.value,
        "nbytes": params.elementSize * params.width * max(1, params.height),
    }
    return CudaNode(index, "fill", "memset", (0, 0, 0), _packed(values))


def _is_inside(address: int, spans: Sequence[tuple[int, int]]) -> bool:
    return any(begin <= address < end for begin, end in spans)


def _packed(values: dict[str, int]) -> tuple[tuple[str, bytes], ...]:
    return tuple(
        (name, value.to_bytes(WORD, "little")) for name, value in values.items()
    )


@functools.cache
def _driver() -> Any:
    """The driver's bindings, imported where there is a GPU to list graphs of."""
    return importlib.import_module("cuda.bindings.driver")


def _call(result: tuple[Any, ...]) -> tuple[Any, ...]:
    """The values of a driver call that succeeded."""
    driver = _driver()
    error, *values = result
    if error != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(
            f"the CUDA driver answered {error.name} when listing a graph's nodes: "
            "graphs must be captured with keep_graph=True on a driver of CUDA 12.4 "
            "or newer."
        )
    return tuple(values)
