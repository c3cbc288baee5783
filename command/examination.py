"""What ``doctor`` finds: each need of the plug-in, met here, not, or known to a server.

A need that reads the engine's configuration cannot be decided without one: its check is
asked with a configuration that answers nothing, and counts as the server's.
"""

import importlib.metadata
import os
import re
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import torch

from graphparity.fastpath.recorders.cuda import has_cuda_bindings
from graphparity.fastpath.vllm_plugin.configuration import EXAMPLE
from graphparity.fastpath.vllm_plugin.eligibility import NEEDS, EngineNeed
from graphparity.fastpath.vllm_plugin.vllm_version import vllm_version

ENTRY_POINTS = "vllm.general_plugins"
DRIVER_FILE = Path("/proc/driver/nvidia/version")


class State(Enum):
    """Whether a need is met."""

    MET = "met"
    UNMET = "not met"
    IN_SERVER = "known in the server"


@dataclass(frozen=True)
class Need:
    """One need, and how it stands here."""

    words: str
    state: State
    remedy: str = ""
    """What to do, in one sentence; "" unless it is not met."""


@dataclass(frozen=True)
class Examination:
    """What is installed, and every need in the order in which to meet them."""

    installed: dict[str, str]
    needs: tuple[Need, ...]

    @property
    def is_ready(self) -> bool:
        """Whether all that can be known here is met."""
        return all(need.state is not State.UNMET for need in self.needs)

    @property
    def next_step(self) -> str:
        """The one thing to do next."""
        unmet = [need for need in self.needs if need.state is State.UNMET]
        return unmet[0].remedy if unmet else f"Serve: vllm serve MODEL {EXAMPLE}"

    def as_dict(self) -> dict[str, Any]:
        """Plain data for programs."""
        needs = [asdict(need) | {"state": need.state.name} for need in self.needs]
        return {
            "ready": self.is_ready,
            "installed": self.installed,
            "needs": needs,
            "next": self.next_step,
        }


class _NoConfiguration:
    """Stands for an engine that is not there."""

    def __getattr__(self, name: str) -> Any:
        raise _InServerError


class _InServerError(Exception):
    """A need's check asked for the engine's configuration."""


def examine() -> Examination:
    """Look at this process, its environment and its machine."""
    return Examination(
        installed={
            "graphparity": _version("graphparity"),
            "torch": torch.__version__,
            "CUDA": torch.version.cuda or "none: a CPU build of torch",
            "driver": _driver(),
            "GPU": _gpu(),
            "Triton": _version("triton"),
            "cuda-bindings": _version("cuda-bindings"),
            "vLLM": _version("vllm"),
        },
        needs=(*map(engine_need, NEEDS[:1]), *_here(), *map(engine_need, NEEDS[1:])),
    )


def engine_need(need: EngineNeed) -> Need:
    """How a need of the eligibility table stands here."""
    try:
        holds = need.holds(_NoConfiguration())
    except _InServerError:
        return Need(need.words, State.IN_SERVER)
    if holds:
        return Need(need.words, State.MET)
    found = need.found()
    words = f"{need.words} (found {found})" if found else need.words
    return Need(words, State.UNMET, _remedy(need))


def _remedy(need: EngineNeed) -> str:
    if need is NEEDS[0]:
        return (
            f"Install a supported vLLM ({vllm_version() or 'none'} is installed): "
            "pip install 'graphparity[vllm]'"
        )
    return f"Change the environment to have {need.words}: {need.why}."


def _here() -> tuple[Need, ...]:
    """The needs that no table of the engine's configuration has."""
    plugins = os.environ.get("VLLM_PLUGINS")
    is_listed = plugins is None or "graphparity" in plugins.split(",")
    return (
        _need(
            f"the entry point graphparity of {ENTRY_POINTS}",
            _has_entry_point(),
            "Install graphparity as a distribution, so that vLLM finds its entry "
            "point: pip install graphparity",
        ),
        _need(
            "VLLM_PLUGINS unset, or with graphparity in it",
            is_listed,
            f"Add graphparity to VLLM_PLUGINS, which is {plugins!r}: "
            f"export VLLM_PLUGINS={plugins},graphparity",
        ),
        _need(
            "a CUDA GPU that torch can use",
            torch.cuda.is_available(),
            f"Run with a CUDA GPU and a CUDA build of torch: {_why_no_gpu()}.",
        ),
        _need(
            "cuda-bindings",
            has_cuda_bindings(),
            "Install cuda-bindings, which lists a graph's nodes: "
            "pip install cuda-bindings",
        ),
    )


def _need(words: str, is_met: bool, remedy: str) -> Need:
    return Need(words, State.MET) if is_met else Need(words, State.UNMET, remedy)


def _has_entry_point() -> bool:
    found = importlib.metadata.entry_points(group=ENTRY_POINTS)
    return "graphparity" in {entry.name for entry in found}


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _driver() -> str:
    """The NVIDIA kernel module's version, as it tells it itself."""
    if not DRIVER_FILE.exists():
        return "none"
    found = re.search(r"\b\d+\.\d+(\.\d+)?\b", DRIVER_FILE.read_text())
    return found[0] if found else "of unknown version"


def _gpu() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "none"


def _why_no_gpu() -> str:
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    return "torch.cuda.is_available() is False"
