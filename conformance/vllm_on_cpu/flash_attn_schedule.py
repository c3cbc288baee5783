"""A stand-in for FlashAttention 3's ahead-of-time schedule.

The FlashAttention builder of a Hopper GPU does one device operation of its own
accord, ``torch.ops._vllm_fa3_C.get_scheduler_metadata``. As on a GPU it is one
opaque operator here: a dispatch mode sees one node. Shape, dtype and dependence on
every sequence length and query offset are those of the kernel, the values are not.

As in the kernel, the bound ``max_seqlen_k`` decides whether a window is one: one that
holds all tokens is dropped, and then tiles have another size. A recording freezes the
bound at its worst case, so its schedule keeps the window.
"""

import torch

from graphparity.conformance.vllm_on_cpu.stand_ins import STAND_INS

_NAME = "get_scheduler_metadata"
_TILE, _WINDOW_TILE = 128, 32
"""Keys of a tile, without a window and with one."""


def schedule(
    batch_size: int,
    max_seqlen_q: int,
    max_seqlen_k: int,
    num_heads_q: int,
    num_heads_kv: int,
    headdim: int,
    headdim_v: int,
    qkv_dtype: torch.dtype,
    cache_seqlens: torch.Tensor,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_k: torch.Tensor | None = None,
    cu_seqlens_k_new: torch.Tensor | None = None,
    seqused_q: torch.Tensor | None = None,
    cache_leftpad: torch.Tensor | None = None,
    page_size: int | None = None,
    max_seqlen_k_new: int = 0,
    causal: bool = False,
    window_size_left: int = -1,
    window_size_right: int = -1,
    has_softcap: bool = False,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
) -> torch.Tensor:
    """Splits and tiles of every request: `[1 + 4 * round_up(batch_size, 4)]` int32."""
    assert cu_seqlens_q is not None
    lens_q = cu_seqlens_q[1 : batch_size + 1] - cu_seqlens_q[:batch_size]
    has_window = 0 <= window_size_left < max_seqlen_k - 1
    lens_k, tile = cache_seqlens[:batch_size], _WINDOW_TILE if has_window else _TILE
    if has_window:
        lens_k = lens_k.clamp(max=window_size_left + max_seqlen_q)
    tiles = (lens_k + tile - 1) // tile
    rounded = -(-batch_size // 4) * 4
    metadata = torch.zeros((4, rounded), dtype=torch.int32, device=tiles.device)
    metadata[0, :batch_size] = lens_q * (num_heads_q // num_heads_kv)
    metadata[1, :batch_size] = tiles.clamp(max=max(num_splits, 1))
    metadata[2, :batch_size] = torch.argsort(tiles, descending=True, stable=True)
    metadata[3, :batch_size] = tiles
    semaphore = torch.zeros(1, dtype=torch.int32, device=tiles.device)
    return torch.cat([semaphore, metadata.flatten()])


def install_schedule() -> None:
    """Define the operator unless something already has; idempotent."""
    if not hasattr(torch.ops._vllm_fa3_C, _NAME):
        name = f"_vllm_fa3_C::{_NAME}"
        torch.library.custom_op(name, schedule, mutates_args=())
        STAND_INS[f"torch.ops._vllm_fa3_C.{_NAME}"] = "FlashAttention 3's schedule"
