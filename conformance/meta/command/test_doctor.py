"""``graphparity doctor``: each thing that is missing is told, and one thing to do."""

import importlib.metadata
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from graphparity.command import examination
from graphparity.command.app import main
from graphparity.command.examination import State, engine_need
from graphparity.fastpath.vllm_plugin.eligibility import NEEDS

Patch = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """One on which everything is met."""
    versions = {"graphparity": "0.1.0", "vllm": "0.33.0", "triton": "3.8.0"}
    monkeypatch.setattr(importlib.metadata, "version", lambda it: versions.get(it, "1"))
    entry = SimpleNamespace(name="graphparity")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [entry])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(examination, "has_cuda_bindings", lambda: True)
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    monkeypatch.delenv("VLLM_BATCH_INVARIANT", raising=False)
    return monkeypatch


def examined(capsys: pytest.CaptureFixture[str], *, code: int) -> dict[str, Any]:
    """What ``graphparity doctor --json`` answers."""
    assert main(["doctor", "--json"]) == code
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def _version(answer: str | None) -> Patch:
    def version(name: str) -> str:
        if answer is None and name == "vllm":
            raise importlib.metadata.PackageNotFoundError(name)
        return answer or "1"

    return lambda patch: patch.setattr(importlib.metadata, "version", version)


def _no_entry_points(group: str) -> list[Any]:
    return []


MISSING: dict[str, tuple[Patch, str, str]] = {
    "no vLLM": (_version(None), "vLLM 0.33.x (found none installed)", "(none is inst"),
    "another vLLM": (_version("0.34.1"), "vLLM 0.33.x (found 0.34.1)", "(0.34.1 is in"),
    "no entry point": (
        lambda patch: patch.setattr(
            importlib.metadata, "entry_points", _no_entry_points
        ),
        "the entry point graphparity",
        "pip install graphparity",
    ),
    "VLLM_PLUGINS": (
        lambda patch: patch.setenv("VLLM_PLUGINS", "other"),
        "VLLM_PLUGINS unset",
        "export VLLM_PLUGINS=other,graphparity",
    ),
    "no GPU": (
        lambda patch: patch.setattr(torch.cuda, "is_available", lambda: False),
        "a CUDA GPU",
        "Run with a CUDA GPU",
    ),
    "no cuda-bindings": (
        lambda patch: patch.setattr(examination, "has_cuda_bindings", lambda: False),
        "cuda-bindings",
        "pip install cuda-bindings",
    ),
    "batch invariance": (
        lambda patch: patch.setenv("VLLM_BATCH_INVARIANT", "1"),
        "no batch invariance",
        "Change the environment to have no batch invariance",
    ),
}


@pytest.mark.parametrize("name", MISSING)
def test_what_is_missing_is_told_with_what_to_do(
    name: str, machine: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It alone, with exit code 1."""
    patch, words, remedy = MISSING[name]
    patch(machine)
    answer = examined(capsys, code=1)
    (unmet,) = [it for it in answer["needs"] if it["state"] == "UNMET"]
    assert words in unmet["words"]
    assert remedy in answer["next"]
    assert answer["ready"] is False


def test_where_all_is_met_it_says_how_to_serve(
    machine: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What reads an engine's configuration is left to the server, and is not held
    against the machine.
    """
    machine.setenv("VLLM_PLUGINS", "other,graphparity")
    answer = examined(capsys, code=0)
    assert answer["next"].startswith("Serve: vllm serve MODEL --additional-config")
    assert answer["installed"]["GPU"] == "NVIDIA H200"
    states = [it["state"] for it in answer["needs"]]
    assert (states.count("MET"), states.count("IN_SERVER")) == (6, len(NEEDS) - 2)


def test_the_first_thing_missing_is_the_next_to_do(
    machine: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of all: the last line has one step, the table every need."""
    for patch, *_ in MISSING.values():
        patch(machine)
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert out.splitlines()[-1].startswith("Not ready. Install a supported vLLM")
    assert out.count("✗") == 6
    assert out.count("?") == len(NEEDS) - 2


def test_a_need_of_the_configuration_is_the_servers() -> None:
    """Whatever it reads: no list of names tells them apart."""
    states = {need.words: engine_need(need).state for need in NEEDS}
    assert states["no sleep mode"] is State.IN_SERVER
    assert states["no batch invariance (VLLM_BATCH_INVARIANT unset)"] is State.MET


def test_the_driver_tells_its_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """In the kernel module's own file; none where there is no such file."""
    monkeypatch.setattr(examination, "DRIVER_FILE", tmp_path / "version")
    assert examination._driver() == "none"
    line = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue"
    (tmp_path / "version").write_text(line)
    assert examination._driver() == "550.54.15"
