"""vLLM loads the plug-in through its installed entry point.

In processes that import nothing of the plug-in and install nothing themselves; what
they do is told in ``full_on_cpu.entry_point``.
"""

import importlib.metadata
import json
import os
import subprocess
import sys
from typing import Any

import pytest

from graphparity.conformance.full_on_cpu.processes import require_vllm

GROUP = "vllm.general_plugins"
LEAVES = "graphparity leaves vllm.v1.worker.gpu.model_states.default.DefaultModelState"
WRAPPED = ["create_engine_config", "resolve_model_state_cls"]

# Name -> VLLM_PLUGINS; None leaves it unset.
PLUGINS = {"all": None, "another": "another"}


@pytest.fixture(scope="module")
def loaded() -> dict[str, dict[str, Any]]:
    """What became of each process, with its log."""
    require_vllm()
    names = {it.name for it in importlib.metadata.entry_points(group=GROUP)}
    if "graphparity" not in names:
        pytest.fail(
            f"no installed distribution has the entry point graphparity of {GROUP}: "
            "run tox -e engine, or install the wheel into this environment."
        )
    running = {name: _start(plugins) for name, plugins in PLUGINS.items()}
    ended = {
        name: process.communicate(timeout=240) for name, process in running.items()
    }
    found = {}
    for name, (output, log) in ended.items():
        assert output.startswith("{"), log[-6000:]
        found[name] = json.loads(output) | {"log": log}
    return found


def _start(plugins: str | None) -> "subprocess.Popen[str]":
    environment = {k: it for k, it in os.environ.items() if k != "VLLM_PLUGINS"}
    if plugins is not None:
        environment["VLLM_PLUGINS"] = plugins
    return subprocess.Popen(
        [sys.executable, "-m", "graphparity.conformance.full_on_cpu.entry_point"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def test_vllm_puts_the_plug_in_in(loaded: dict[str, dict[str, Any]]) -> None:
    """Two functions are wrapped, once, also where plug-ins are loaded twice."""
    outcome = loaded["all"]
    assert (outcome["imported_before"], outcome["imported_after"]) == (False, True)
    assert outcome["wrapped"] == WRAPPED
    assert outcome["wrapped_again"] == []


@pytest.mark.parametrize("configuration", ["absent", "off"])
def test_mode_off_answers_as_vllm(
    configuration: str, loaded: dict[str, dict[str, Any]]
) -> None:
    """The model state class is the one that vLLM's own function chooses."""
    answer, vllm_s = loaded["all"]["answers"][configuration]
    assert answer == vllm_s == "DefaultModelState"


def test_mode_replay_reaches_the_plug_in(loaded: dict[str, dict[str, Any]]) -> None:
    """It alone: without a GPU the state is left as it is, and the log says so."""
    outcome = loaded["all"]
    assert outcome["answers"]["replay"] == ["DefaultModelState", "DefaultModelState"]
    assert outcome["log"].count(LEAVES) == 1


def test_a_misspelt_mode_is_refused_by_the_front_end(
    loaded: dict[str, dict[str, Any]],
) -> None:
    """By ``EngineArgs.create_engine_config``, with what to write instead."""
    assert loaded["all"]["answers"]["misspelt"] == (
        "ValueError: additional_config['graphparity'] has mode = 'fast': use off, "
        "replay, verify."
    )


def test_a_process_for_other_plug_ins_is_left_alone(
    loaded: dict[str, dict[str, Any]],
) -> None:
    """``VLLM_PLUGINS`` without its name: nothing is imported, wrapped or checked."""
    outcome = loaded["another"]
    assert outcome["imported_after"] is False
    assert outcome["wrapped"] == outcome["wrapped_again"] == []
    assert set(map(tuple, outcome["answers"].values())) == {
        ("DefaultModelState", "DefaultModelState")
    }
    assert "graphparity" not in outcome["log"]
