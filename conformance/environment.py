"""What a run ran on: versions, recorder, GPU, date."""

import importlib.metadata
import platform
import re
from datetime import UTC, datetime

import torch

_DISTRIBUTIONS = ("torch", "triton", "vllm", "numpy", "hypothesis", "pytest")


def environment(recorder: str) -> dict[str, str]:
    """Name -> value, in the order in which a reader asks for them.

    Args:
        recorder: what records the builds; with one that needs no GPU, none is named.
    """
    version = _version("graphparity")
    return {
        "recorder": recorder,
        "GPU": _gpu() if recorder == "cuda" else f"none: {recorder} recorder",
        "graphparity": version,
        "commit": commit_of(version),
        **{name: _version(name) for name in _DISTRIBUTIONS},
        "CUDA": str(torch.version.cuda or "none: a CPU build of torch"),
        "Python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


def commit_of(version: str) -> str:
    """The commit that a version made from git tags names in its local part."""
    found = re.search(r"\+(?:.*\.)?g([0-9a-f]{6,40})", version)
    return found[1] if found else "not told by the version"


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _gpu() -> str:
    return str(torch.cuda.get_device_name()) if torch.cuda.is_available() else "none"
