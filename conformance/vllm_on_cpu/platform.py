"""Prepare this process to run vLLM's CUDA configuration on CPU tensors.

`install(flavour)` must come before the first vLLM import: vLLM resolves its
platform, and Triton decides whether a kernel is interpreted, while modules are
imported. One process has one flavour.
"""

import importlib.metadata
import os
import sys
from enum import Enum
from typing import Any

import torch

from graphparity.conformance.vllm_on_cpu.interpreter_speed import speed_up_interpreter
from graphparity.conformance.vllm_on_cpu.launch_memo import launch_once
from graphparity.conformance.vllm_on_cpu.stand_ins import STAND_INS, install_stand_ins

SUPPORTED_VLLM = "0.33.0"


class Flavour(Enum):
    """A GPU generation: compute capability and number of multiprocessors."""

    HOPPER = ((9, 0), 132)
    BLACKWELL = ((10, 0), 148)

    @property
    def capability(self) -> tuple[int, int]:
        """Compute capability that the platform reports."""
        return self.value[0]

    @property
    def num_sms(self) -> int:
        """Multiprocessors that the platform reports."""
        return self.value[1]


# The flavour of this process, once it has one.
_installed: list[Flavour] = []


def require_supported_vllm() -> None:
    """Raise RuntimeError unless the installed vLLM is `SUPPORTED_VLLM`."""
    remedy = f"install it with `pip install --no-deps vllm=={SUPPORTED_VLLM}`"
    try:
        found = importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        raise RuntimeError(f"vLLM is not installed; {remedy}.") from None
    # A local label names the build ("0.33.0+cpu"), not the version.
    if found.partition("+")[0] != SUPPORTED_VLLM:
        raise RuntimeError(
            f"vLLM {found} is installed, but graphparity's harness follows "
            f"{SUPPORTED_VLLM}; {remedy}."
        )


def install(flavour: Flavour) -> None:
    """Make vLLM of this process believe in a GPU of `flavour`; idempotent.

    Raises RuntimeError if the process already serves another flavour or has
    imported what must see the environment first, or if vLLM's version differs.
    """
    if _installed == [flavour]:
        return
    _require_fresh_process(flavour)
    require_supported_vllm()
    _set_environment()
    install_stand_ins(flavour.num_sms)
    _set_platform(flavour)
    _use_cpu_streams_and_uva()
    speed_up_interpreter()
    launch_once()
    _installed.append(flavour)


def use_gpu(flavour: Flavour) -> None:
    """Serve `flavour` on the GPU that this process has; nothing stands in.

    Raises RuntimeError if the GPU is another flavour's or vLLM's version differs.
    """
    capability = torch.cuda.get_device_capability()
    if capability != flavour.capability:
        raise RuntimeError(
            f"{torch.cuda.get_device_name()} has compute capability {capability}, but "
            f"{flavour.name} needs {flavour.capability}; use the subjects of this GPU."
        )
    require_supported_vllm()
    _set_defaults()


def _require_fresh_process(flavour: Flavour) -> None:
    if _installed:
        raise RuntimeError(
            f"This process serves {_installed[0].name}, so it cannot serve "
            f"{flavour.name}; use another process for it."
        )
    platforms = sys.modules.get("vllm.platforms")
    if getattr(platforms, "_current_platform", None) is not None:
        raise RuntimeError(
            "vLLM has already resolved a platform in this process; call install() "
            "before anything imports vllm, or use another process."
        )
    # Triton's own functions are made for the interpreter or the compiler when
    # they are imported (torch's inductor imports them).
    language = sys.modules.get("triton.language")
    if language is not None and type(language.sum).__name__ != "InterpretedFunction":
        raise RuntimeError(
            "Triton was imported without TRITON_INTERPRET=1; set it, or call "
            "install() before anything imports triton."
        )


def _set_environment() -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ["TRITON_INTERPRET"] = "1"
    # Would select vLLM's CPU platform, which has no FULL graphs.
    os.environ.pop("VLLM_TARGET_DEVICE", None)
    _set_defaults()


def _set_defaults() -> None:
    """Keep vLLM quiet and offline, on Model Runner V2, unless told otherwise."""
    for name, value in {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_USE_V2_MODEL_RUNNER": "1",
    }.items():
        os.environ.setdefault(name, value)


def _set_platform(flavour: Flavour) -> None:
    """Set `vllm.platforms._current_platform`, before anything resolves it."""
    import vllm.platforms
    from vllm.platforms.cuda import NonNvmlCudaPlatform
    from vllm.platforms.interface import DeviceCapability

    reported = DeviceCapability(*flavour.capability)

    class CudaPlatformOnCpu(NonNvmlCudaPlatform):  # type: ignore[misc]
        """A CUDA platform that answers from `flavour` and asks no driver."""

        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> Any:
            return reported

        @classmethod
        def get_device_name(cls, device_id: int = 0) -> str:
            return f"{flavour.name} on CPU"

        @classmethod
        def get_device_total_memory(cls, device_id: int = 0) -> int:
            return 80 << 30

        @classmethod
        def is_pin_memory_available(cls) -> bool:
            return False

        @classmethod
        def is_fully_connected(cls, physical_device_ids: list[int]) -> bool:
            return False

        def get_global_graph_pool(self) -> tuple[int, int]:
            return (0, 0)

    vllm.platforms._current_platform = CudaPlatformOnCpu()
    STAND_INS["vllm.platforms.current_platform"] = CudaPlatformOnCpu.__doc__ or ""


def _use_cpu_streams_and_uva() -> None:
    """Apply vLLM's CPU patches of streams, events and UVA (`v1/worker/cpu/shm.py`)."""
    import vllm.v1.worker.cpu.shm  # noqa: F401
    from vllm.v1.worker.gpu import buffer_utils

    # With UVA a pool hands out views of its host buffers, as on a GPU.
    buffer_utils.is_uva_available = lambda: True
    STAND_INS["vllm.v1.worker.cpu.shm"] = "streams, events and UVA"
    # The interpreter runs small arrays: threads cost more than they bring.
    torch.set_num_threads(1)
