"""Copies of host memory to the device, of which a recording repeats the address.

The nodes of two captures look equal while the memory they read went stale, so the
source itself is put to the test: the step must write all of it before every replay,
and the build, which a replay does not run, must leave it alone.
"""

from collections.abc import Iterator

import torch

from graphparity.fastpath.group_build import GroupBuild
from graphparity.fastpath.proving.findings import Finding, at_node
from graphparity.fastpath.proving.group_memory import memory_of, owner_of
from graphparity.fastpath.proving.node_checks import CapturedNodes
from graphparity.fastpath.proving.verdict import Check
from graphparity.fastpath.recorders.protocol import NodeParameters
from graphparity.fastpath.runtime_batch import StepRows


def stale_host_copies(
    build: GroupBuild, rows: StepRows, captured: CapturedNodes
) -> Iterator[Finding]:
    """The host copies whose source a step does not write before its replay."""
    for node in captured.nodes:
        if node.kind == "host-copy":
            reason = _staleness(build, rows, node)
            if reason:
                yield at_node(Check.RECORDABLE_NODES, node, reason)


def _staleness(build: GroupBuild, rows: StepRows, node: NodeParameters) -> str:
    address = dict(node.pointers)["source"]
    path = owner_of(address, memory_of(build))
    if not path:
        return (
            "it copies host memory that the builder does not own, so that what it "
            "reads at a replay is left to whoever writes there."
        )
    nbytes = int(str(dict(node.values)["nbytes"]))
    source = _bytes_at(memory_of(build)[path], address, nbytes)
    if not _is_staged(build, rows, source):
        return f"it copies {path}, which no step writes before a replay."
    staged = source.clone()
    build.stage(rows)()
    if not torch.equal(source, staged):
        return f"it copies {path}, which the build itself writes on the host."
    return ""


def _bytes_at(tensor: torch.Tensor, address: int, nbytes: int) -> torch.Tensor:
    storage = tensor.untyped_storage()
    whole = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    whole = whole.set_(storage, 0, (storage.nbytes(),), (1,))
    first = address - storage.data_ptr()
    return whole[first : first + nbytes]


def _is_staged(build: GroupBuild, rows: StepRows, source: torch.Tensor) -> bool:
    """Whether staging a step decides every byte of ``source``."""
    contents = []
    for filler in (0x00, 0x7F):
        source.fill_(filler)
        build.stage(rows)
        contents.append(source.clone())
    return torch.equal(*contents)
