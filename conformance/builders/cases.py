"""Every real vLLM metadata builder that is judged, and the verdict it must get.

A verdict follows from what the builder of vLLM 0.33.0 does in a padded FULL decode
step, given beside it. Importing this module imports no vLLM; making a build does,
after preparing the process for the case's flavour, so that a process makes the
cases of one flavour only.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch

from graphparity.conformance.vllm_on_cpu.deepseek_v41 import CPU
from graphparity.conformance.vllm_on_cpu.flash_attn_schedule import install_schedule
from graphparity.conformance.vllm_on_cpu.platform import Flavour, install, use_gpu
from graphparity.fastpath.group_build import GroupBuild

Verdict = Literal["recordable", "refused"]


@dataclass(frozen=True)
class BuilderCase:
    """One metadata builder in the deployment it is judged in."""

    name: str
    flavour: Flavour
    query_len: int
    """Tokens of each request in a decode step."""
    make: Callable[[], GroupBuild]
    """Its build in a fresh deployment on CPU tensors."""
    expected: Verdict
    why: str
    constants: Mapping[str, str]
    """Members of the builder that its builds read and never write -> what they are."""


CPU_ONLY = {"cpu_attention": "its schedule is an operator of vLLM's CPU build"}
"""Cases that a GPU machine cannot make -> why."""


def make_build(
    name: str, device: torch.device = CPU, max_num_seqs: int = 16
) -> GroupBuild:
    """The build of the case `name` in a fresh deployment on `device`, for at most
    `max_num_seqs` requests a step.

    Raises RuntimeError if this process, or the GPU, is of another flavour.
    """
    case = CASES[name]
    if device.type == "cpu":
        install(case.flavour)
        install_schedule()
    else:
        use_gpu(case.flavour)
    # vLLM is imported once its platform is set up.
    from graphparity.conformance.builders.group_builds import (  # noqa: PLC0415
        make_group_build,
    )

    return make_group_build(case, device, max_num_seqs)


def _recordable(
    name: str,
    flavour: Flavour,
    why: str,
    query_len: int = 1,
    constants: Mapping[str, str] | None = None,
) -> BuilderCase:
    make = partial(make_build, name)
    return BuilderCase(
        name, flavour, query_len, make, "recordable", why, constants or {}
    )


def _refused(name: str, flavour: Flavour, why: str, query_len: int = 1) -> BuilderCase:
    make = partial(make_build, name)
    return BuilderCase(name, flavour, query_len, make, "refused", why, {})


_HOPPER, _BLACKWELL = Flavour.HOPPER, Flavour.BLACKWELL
_NO_DEVICE_WORK = "No device work: metadata is the runner's buffers and host bounds."
_FA3_SCHEDULE = (
    "FlashAttention 3's schedule, copied into the builder's buffer, the rest zeroed; "
    "its max_seqlen_k is a host bound, frozen at its worst case."
)
_OWN_KERNELS = "Kernels and fills from the runner's buffers into the builder's."
_SLOTS_AND_CLAMP = (
    "Token map and compressed slots into the builder's buffers; clamps its block "
    "table, an input, in place."
)
_STATE_INDICES = "State indices copied from the block table, padded rows filled."
_NO_REPLAY = {"no_replay_start": "zero replay starts of a state that passes none"}
_RANGES = {
    "offsets_buffer": "offsets of a request's tokens, 0 to the query length",
    "arange_buffer": "row indices, 0 to the largest batch",
}

CASES: dict[str, BuilderCase] = {
    case.name: case
    for case in (
        _recordable("flash_attention", _HOPPER, _FA3_SCHEDULE),
        _recordable("flash_attention_4", _BLACKWELL, _NO_DEVICE_WORK),
        _recordable("triton_attention", _HOPPER, _NO_DEVICE_WORK),
        _recordable("compressor", _HOPPER, _OWN_KERNELS),
        _recordable(
            "sliding_window_flashmla", _HOPPER, _OWN_KERNELS, constants=_NO_REPLAY
        ),
        _recordable(
            "sliding_window_flashinfer", _BLACKWELL, _OWN_KERNELS, constants=_NO_REPLAY
        ),
        _recordable("deepseek_v32_indexer", _HOPPER, _OWN_KERNELS, constants=_RANGES),
        _recordable(
            "deepseek_v32_indexer_speculation", _HOPPER, _OWN_KERNELS, 3, _RANGES
        ),
        _recordable("deepseek_v41_indexer", _HOPPER, _OWN_KERNELS, constants=_RANGES),
        _recordable(
            "deepseek_v41_sparse_indexer",
            _BLACKWELL,
            _OWN_KERNELS,
            constants=_RANGES | {"zero_row_ks": "first row of each sequence, all 0"},
        ),
        _recordable("sparse_mla_flashmla", _HOPPER, _SLOTS_AND_CLAMP),
        _recordable("sparse_mla_flashinfer", _BLACKWELL, _SLOTS_AND_CLAMP),
        _recordable(
            "flashmla",
            _HOPPER,
            "No device work; an empty tile schedule, which the first kernel of the "
            "forward fills once a metadata object: a replay must make it anew.",
        ),
        _recordable(
            "flashmla_fp8",
            _HOPPER,
            "FlashMLA's schedule over an fp8 cache, copied into the builder's buffers.",
        ),
        _recordable("triton_mla", _HOPPER, _NO_DEVICE_WORK),
        _recordable("flash_attn_mla", _HOPPER, _FA3_SCHEDULE),
        _recordable("flashinfer_mla", _BLACKWELL, _NO_DEVICE_WORK),
        _recordable("flashmla_sparse", _HOPPER, "The token map, one kernel."),
        _recordable("mamba2", _HOPPER, _STATE_INDICES),
        _recordable("mamba2_speculation", _HOPPER, _STATE_INDICES, 3),
        _recordable("gdn", _HOPPER, _STATE_INDICES),
        _refused(
            "gdn_speculation",
            _HOPPER,
            "Copies a host mask of the step's speculative rows to the device through "
            "a temporary, whose memory a replay would read stale.",
            3,
        ),
        _refused(
            "flex_attention",
            _HOPPER,
            "Copies the host's token-to-request map to the device; block counts and "
            "logical block ids are fresh tensors, of a width that follows max_seq_len.",
        ),
        _refused(
            "cpu_attention",
            _HOPPER,
            "Its schedule is host code that reads the sequence lengths and returns a "
            "fresh tensor, whose length depends on them.",
        ),
    )
}
