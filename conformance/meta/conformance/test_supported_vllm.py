"""Another vLLM than the supported one is refused before anything of it is imported."""

import importlib.metadata

import pytest

from graphparity.conformance.vllm_on_cpu.platform import (
    SUPPORTED_VLLM,
    require_supported_vllm,
)


def installed(monkeypatch: pytest.MonkeyPatch, version: str | None) -> None:
    """Make it look as if that version of vLLM were installed, or none."""

    def answer(name: str) -> str:
        assert name == "vllm"
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(importlib.metadata, "version", answer)


def test_supported_version_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pinned one."""
    installed(monkeypatch, SUPPORTED_VLLM)
    require_supported_vllm()


@pytest.mark.parametrize("version", ["0.32.0", "0.34.0", "0.33.1", None])
def test_other_version_is_refused(
    version: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sentence: what was found, and what to install."""
    installed(monkeypatch, version)
    with pytest.raises(RuntimeError) as caught:
        require_supported_vllm()
    message = str(caught.value)
    assert (version or "not installed") in message
    assert f"vllm=={SUPPORTED_VLLM}" in message
