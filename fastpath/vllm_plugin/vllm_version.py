"""Which vLLM is installed, and whether the plug-in is made for it.

It is read from the distribution: importing any of vLLM's modules to find out may fail
in a version where they lie elsewhere.
"""

import importlib.metadata

SUPPORTED_VLLM = "0.33"
"""The release whose functions are wrapped; any patch of it."""


def vllm_version() -> str:
    """The installed version, such as ``0.33.0+cpu``; "" if there is none."""
    try:
        return importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        return ""


def is_supported(version: str) -> bool:
    """Whether the plug-in is made for this version, whatever it was built for."""
    return version.partition("+")[0].startswith(f"{SUPPORTED_VLLM}.")


def unsupported_message(version: str) -> str:
    """What a process of another version logs, in one sentence."""
    found = f"vLLM {version}" if version else "no distribution of vLLM"
    return (
        f"graphparity does nothing in this process: it found {found}, and supports "
        f"{SUPPORTED_VLLM}.x; install that version, or uninstall graphparity."
    )
