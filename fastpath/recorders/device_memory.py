"""Which memory a tensor lives in, when every tensor lives on the CPU.

The placement of a storage is declared, or follows from an allocation made during
a capture; it is never guessed from a tensor's attributes. A tensor has the
placement of its storage, so views need no declaration of their own.
"""

import enum
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch


class Placement(enum.Enum):
    """Where a storage lives, as a CUDA capture would see it."""

    DEVICE = "device memory"
    PINNED = "declared pinned host memory"
    PINNED_TEMPORARY = "pinned host memory made during the capture"
    ROTATING = "a rotating buffer"
    PAGEABLE = "pageable host memory"


def storage_id(tensor: torch.Tensor) -> int:
    """Identity of the storage of `tensor`, unique while the storage is alive."""
    identity: int = tensor.untyped_storage()._cdata
    return identity


@contextmanager
def plain_tensors() -> Iterator[None]:
    """Make tensors that every later mode may write: no inference tensors."""
    with torch.inference_mode(False), torch.no_grad():
        yield


def alias_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a plain tensor of the same memory, shape and strides.

    The caller's own tensor object may be reshaped in place later, or be an
    inference tensor that a replay must not write.
    """
    alias = torch.empty(0, dtype=tensor.dtype)
    storage = tensor.untyped_storage()
    return alias.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())


def bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    """Return the whole of `storage` as a plain uint8 tensor."""
    alias = torch.empty(0, dtype=torch.uint8)
    return alias.set_(storage, 0, (storage.nbytes(),), (1,))


class GraphPool:
    """The memory that one capture allocated; it lives as long as the graph does.

    Another graph may use the same memory between two replays, so nothing in it
    survives: `poison` stands for that other graph.
    """

    def __init__(self) -> None:
        self._storages: dict[int, torch.UntypedStorage] = {}
        self._bytes: tuple[torch.Tensor, ...] = ()

    def __contains__(self, storage: int) -> bool:
        return storage in self._storages

    def adopt(self, tensor: torch.Tensor) -> None:
        """Count the storage of `tensor` as allocated from this pool."""
        self._storages[storage_id(tensor)] = tensor.untyped_storage()

    def seal(self) -> None:
        """End the capture: storages have their final size from now on."""
        self._bytes = tuple(bytes_of(storage) for storage in self._storages.values())

    def spans(self) -> list[tuple[int, int]]:
        """Return the address range of every allocation, in order of allocation."""
        starts = [(it.data_ptr(), it.numel()) for it in self._bytes if it.numel()]
        return [(start, start + nbytes) for start, nbytes in starts]

    def poison(self, byte: int) -> None:
        """Overwrite every allocation with ``byte``."""
        for allocation in self._bytes:
            allocation.fill_(byte)


class StorageSnapshots:
    """Contents of storages before a capture touched them."""

    __slots__ = ("_saved",)

    def __init__(self) -> None:
        self._saved: dict[int, tuple[torch.UntypedStorage, torch.Tensor]] = {}

    def save(self, tensor: torch.Tensor) -> None:
        """Keep the content of the storage of `tensor`, unless it is kept already."""
        key = storage_id(tensor)
        if key not in self._saved:
            storage = tensor.untyped_storage()
            self._saved[key] = (storage, bytes_of(storage).clone())

    def restore(self) -> None:
        """Write every kept content back, and forget it."""
        for storage, content in self._saved.values():
            if storage.nbytes() != content.numel():
                storage.resize_(content.numel())
            bytes_of(storage).copy_(content)
        self._saved.clear()


class DeviceMemory:
    """Placements: what was declared, and what captures allocated since."""

    def __init__(
        self,
        device_memory: Iterable[torch.Tensor],
        pinned_memory: Iterable[torch.Tensor],
        rotating_memory: Iterable[torch.Tensor],
    ) -> None:
        # The storages are kept, so that no identity is reused by another storage.
        self._kept: list[torch.UntypedStorage] = []
        self._declared: dict[int, Placement] = {}
        self._declare(device_memory, Placement.DEVICE)
        self._declare(pinned_memory, Placement.PINNED)
        self._declare(rotating_memory, Placement.ROTATING)
        self._pools: list[weakref.ref[GraphPool]] = []

    def _declare(self, tensors: Iterable[torch.Tensor], placement: Placement) -> None:
        for tensor in tensors:
            declared = self._declared.setdefault(storage_id(tensor), placement)
            if declared is not placement:
                raise ValueError(
                    f"a tensor of shape {tuple(tensor.shape)} is declared as both "
                    f"{declared.value} and {placement.value}; declare its storage once."
                )
            self._kept.append(tensor.untyped_storage())

    def add_pool(self, pool: GraphPool) -> None:
        """Count what `pool` allocates as device memory while its graph lives."""
        self._pools = [ref for ref in self._pools if ref() is not None]
        self._pools.append(weakref.ref(pool))

    def placement(self, tensor: torch.Tensor) -> Placement:
        """Return the placement of the storage of `tensor`."""
        key = storage_id(tensor)
        declared = self._declared.get(key)
        if declared is not None:
            return declared
        pools = (ref() for ref in self._pools)
        if any(pool is not None and key in pool for pool in pools):
            return Placement.DEVICE
        return Placement.PAGEABLE
