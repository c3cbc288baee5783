"""Every tensor of a deployment that is device memory, by a readable path.

On a CPU no tensor tells whether it would live on the GPU, so its owner decides:
vLLM keeps host mirrors under names that end in `cpu` or `np`, and every other
tensor that `InputBuffers`, `BlockTables`, `RequestState`, builders and states
hold is device memory. Buffers of a `UvaBufferPool` are pinned host memory that
the device reads and that rotates: they are listed apart.
"""

from collections.abc import Iterator
from enum import Enum
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from graphparity.conformance.vllm_on_cpu.deepseek_v41 import Deployment

_HOST_SUFFIXES = ("cpu", "np")
# Members of these modules describe memory, or hold recordings of it.
_NOT_OWNERS = (
    "vllm.config",
    "vllm.platforms",
    "vllm.v1.kv_cache_interface",
    "vllm.models.deepseek_v41.nvidia.specialized_decode",
)


def device_memory(deployment: "Deployment", *states: Any) -> dict[str, torch.Tensor]:
    """Device tensors of `deployment` and of `states`: path -> tensor."""
    owners = _builders(deployment) | _owners(deployment, states)
    return _collect(owners, rotating=False)


def builder_memory(deployment: "Deployment") -> dict[str, torch.Tensor]:
    """The tensors that the metadata builders own: path -> tensor."""
    return _collect(_builders(deployment), rotating=False)


def rotating_memory(deployment: "Deployment", *states: Any) -> dict[str, torch.Tensor]:
    """The buffers of every `UvaBufferPool`: path -> tensor.

    A step reads another buffer of a pool than the step before it, so none of
    their addresses may be recorded.
    """
    return _collect(_owners(deployment, states), rotating=True)


def _builders(deployment: "Deployment") -> dict[str, Any]:
    return {
        f"builders.{group.layer_names[0]}": group.get_metadata_builder()
        for groups in deployment.attn_groups
        for group in groups
    }


def _owners(deployment: "Deployment", states: tuple[Any, ...]) -> dict[str, Any]:
    owners: dict[str, Any] = {
        "input_buffers": deployment.input_buffers,
        "block_tables": deployment.block_tables,
        "req_states": deployment.req_states,
    }
    return owners | {f"states[{i}]": state for i, state in enumerate(states)}


def _collect(owners: dict[str, Any], *, rotating: bool) -> dict[str, torch.Tensor]:
    """Walk `owners`; a tensor held twice is listed once, where it is met first."""
    found: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for path, owner in owners.items():
        for step, member in _members(owner):
            found.update(_tensors(member, path + step, rotating, seen))
    return found


def _tensors(
    owner: Any, path: str, rotating: bool, seen: set[int]
) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors under `owner` in a pool if `rotating`, else outside of pools."""
    from vllm.v1.worker.gpu.buffer_utils import UvaBackedTensor, UvaBufferPool

    if id(owner) in seen:
        return
    seen.add(id(owner))
    if isinstance(owner, UvaBackedTensor):
        # Its `gpu` is a buffer of the pool: the one whose turn it is.
        yield from _tensors(owner.pool, path, rotating, seen)
    elif isinstance(owner, UvaBufferPool):
        if rotating:
            yield from _pool_buffers(owner, path)
    elif isinstance(owner, torch.Tensor):
        if not rotating and owner.numel():
            yield path, owner
    elif _may_own_memory(owner):
        for step, member in _members(owner):
            yield from _tensors(member, path + step, rotating, seen)


def _pool_buffers(pool: Any, path: str) -> Iterator[tuple[str, torch.Tensor]]:
    for i, buffer in enumerate(pool._uva_bufs):
        yield f"{path}[{i}]", buffer.uva()


def _members(owner: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(owner, list | tuple):
        yield from ((f"[{i}]", member) for i, member in enumerate(owner))
    elif isinstance(owner, dict):
        yield from ((f"[{key!r}]", member) for key, member in owner.items())
    else:
        for name, member in vars(owner).items():
            if not name.endswith(_HOST_SUFFIXES):
                yield f".{name}", member


def _may_own_memory(owner: Any) -> bool:
    """Containers and vLLM's objects, but no configuration, layer or recording."""
    if isinstance(owner, list | tuple | dict):
        return True
    if isinstance(owner, Enum | torch.nn.Module | type) or not hasattr(
        owner, "__dict__"
    ):
        return False
    module = type(owner).__module__
    return module.startswith("vllm.") and not module.startswith(_NOT_OWNERS)
