"""Which attention group a field or a buffer is of, by its path.

Metadata lies under its layers' names, builders' buffers under ``builders.`` and the
name of the group's first layer, and block tables under their KV-cache group's number.
What is left, such as the input buffers, all groups share. A group is called by its
first layer.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

SHARED = "shared"
"""What no group has for itself."""

_BUILDERS = "builders."
_BLOCK_TABLES = ("block_tables.input_block_tables[", "block_tables.block_tables[")


class GroupOfPath(dict[str, str]):
    """Path -> the name of its attention group, found out once a path.

    Args:
        attn_groups: [num_kv_cache_groups] the attention groups of each.
    """

    def __init__(self, attn_groups: Sequence[Sequence[Any]]) -> None:
        super().__init__()
        self._layers: dict[str, str | None] = {}
        self.of_kv_cache_group: list[list[str]] = [
            [group.layer_names[0] for group in groups] for groups in attn_groups
        ]
        """[num_kv_cache_groups] the names of each one's attention groups."""
        self._of_layer = {
            layer: group.layer_names[0]
            for groups in attn_groups
            for group in groups
            for layer in group.layer_names
        }

    def __missing__(self, path: str) -> str:
        layer = self.layer_of(path)
        name = self._of_layer[layer] if layer is not None else self._of_table(path)
        self[path] = name
        return name

    @property
    def names(self) -> list[str]:
        """Every attention group, in the order of the KV-cache groups."""
        return [name for names in self.of_kv_cache_group for name in names]

    def layer_of(self, path: str) -> str | None:
        """The layer under whose name ``path`` lies; None if there is none."""
        if path not in self._layers:
            self._layers[path] = self._find_layer(path.removeprefix(_BUILDERS))
        return self._layers[path]

    def _find_layer(self, path: str) -> str | None:
        found = [
            layer
            for layer in self._of_layer
            if path == layer or path.startswith((f"{layer}.", f"{layer}["))
        ]
        return max(found, key=len, default=None)

    def count(self, paths: Iterable[str]) -> Counter[str]:
        """How many of ``paths`` each group has."""
        return Counter(map(self.__getitem__, paths))

    def _of_table(self, path: str) -> str:
        for prefix in _BLOCK_TABLES:
            if path.startswith(prefix):
                index = int(path.removeprefix(prefix).partition("]")[0])
                return self.of_kv_cache_group[index][0]
        return SHARED


def refused_groups(state: object) -> set[int]:
    """The KV-cache groups that a state of ``specialize`` builds eagerly in replayed
    steps; none of another state.
    """
    split = getattr(state, "_split", None)
    return set() if split is None else {*split.refused}
