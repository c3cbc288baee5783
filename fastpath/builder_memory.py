"""The device tensors that metadata builders own, by a readable path.

A builder keeps its persistent buffers in members of itself, or of vLLM's own objects
that it holds. On a CPU no tensor tells whether it would live on a GPU; vLLM keeps
host mirrors under names that end in ``cpu`` or ``np``.
"""

from collections.abc import Iterator
from enum import Enum
from typing import Any

import torch

from graphparity.reference.attention import AttentionGroup

_HOST_SUFFIXES = ("cpu", "np")
# Members of these modules describe memory, they own none.
_NOT_OWNERS = ("vllm.config", "vllm.platforms", "vllm.v1.kv_cache_interface")


def builder_memory(
    attn_groups: list[list[AttentionGroup]], device: torch.device
) -> dict[str, torch.Tensor]:
    """Path -> tensor of every builder; one held twice is listed where met first."""
    found: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for groups in attn_groups:
        for group in groups:
            it: Any = group
            path = f"builders.{it.layer_names[0]}"
            found.update(_tensors(it.get_metadata_builder(), path, device, seen))
    return found


def member_tensors(
    owner: Any, name: str, device: torch.device
) -> dict[str, torch.Tensor]:
    """Path -> device tensor of the members of one object, not of theirs."""
    return {
        f"{name}.{member}": value
        for member, value in vars(owner).items()
        if _is_device_tensor(value, device) and not member.endswith(_HOST_SUFFIXES)
    }


def _tensors(
    owner: Any, path: str, device: torch.device, seen: set[int]
) -> Iterator[tuple[str, torch.Tensor]]:
    if id(owner) in seen:
        return
    seen.add(id(owner))
    if _is_device_tensor(owner, device):
        yield path, owner
        return
    for step, member in _members(owner):
        yield from _tensors(member, path + step, device, seen)


def _is_device_tensor(value: Any, device: torch.device) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.numel() > 0
        and value.device.type == device.type
    )


def _members(owner: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(owner, list | tuple):
        yield from ((f"[{i}]", member) for i, member in enumerate(owner))
    elif isinstance(owner, dict):
        yield from ((f"[{key!r}]", member) for key, member in owner.items())
    elif _is_owner(owner):
        for name, member in vars(owner).items():
            if not name.endswith(_HOST_SUFFIXES):
                yield f".{name}", member


def _is_owner(value: Any) -> bool:
    """Objects of vLLM, but no configuration and no layer."""
    if isinstance(value, Enum | torch.nn.Module | torch.Tensor | type):
        return False
    module = type(value).__module__
    is_builder = hasattr(value, "build") and hasattr(value, "kv_cache_spec")
    is_vllm_s = module.startswith("vllm.") and not module.startswith(_NOT_OWNERS)
    return (is_builder or is_vllm_s) and hasattr(value, "__dict__")
