"""Groups that must share a branch of a forked build, for what vLLM's builders do.

vLLM derives some metadata from an earlier group's (``derived_groups``), and builders
may hold a buffer in common. If one of them writes it, the order of their builds counts.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import torch

from graphparity.fastpath.builder_memory import builder_memory
from graphparity.fastpath.forked_build import used_groups
from graphparity.fastpath.proving.group_memory import span_of
from graphparity.fastpath.vllm_plugin.derived_groups import groups_built_with


def tied_groups(
    attn_groups: list[list[Any]],
    device: torch.device,
    written: frozenset[str] = frozenset(),
) -> list[tuple[int, ...]]:
    """KV-cache groups, by index, that must build in serial order.

    Args:
        attn_groups: those that are built; masked ones have no layers.
        device: of the builders' buffers.
        written: paths of the builders' buffers that builds were seen to write; where
            nothing was seen, each may be.
    """
    used = used_groups(attn_groups)
    derived = (groups_built_with(attn_groups, index) for index in used)
    return [
        *(tie for tie in derived if len(tie) > 1),
        *_over_one_buffer(attn_groups, used, device, written),
    ]


def _over_one_buffer(
    attn_groups: list[list[Any]],
    used: Sequence[int],
    device: torch.device,
    written: frozenset[str],
) -> Iterator[tuple[int, int]]:
    owned = {index: builder_memory([attn_groups[index]], device) for index in used}
    storages = {
        index: {span_of(tensor) for tensor in memory.values()}
        for index, memory in owned.items()
    }
    outputs = {
        index: {
            span_of(tensor)
            for path, tensor in memory.items()
            if not written or path in written
        }
        for index, memory in owned.items()
    }
    for one, other in combinations(used, 2):
        if outputs[one] & storages[other] or outputs[other] & storages[one]:
            yield one, other
