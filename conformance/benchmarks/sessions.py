"""What ``pytest --benchmark-only`` runs, and what its figures are figures of.

A part of the suite's pytest plug-in, which registers it. With the option, benchmarks
are collected and nothing else; without it, everything but benchmarks.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

_FOLDER = "benchmarks"


def is_benchmarking(config: pytest.Config) -> bool:
    """Whether the session is one of benchmarks alone."""
    return bool(config.getoption("benchmark_only", default=False))


def default_recorder(config: pytest.Config) -> str:
    """What records the builds if nothing is said: benchmarks time real launches where
    there are any.
    """
    real = is_benchmarking(config) and torch.cuda.is_available()
    return "cuda" if real else "emulated"


def meaning_of(recorder: str) -> str:
    """What a benchmark's figures are, in a line."""
    if recorder == "cuda":
        gpu = torch.cuda.get_device_name()
        return f"benchmarks: host time on a machine with one {gpu}; launches are real"
    return (
        f"benchmarks: host time alone, with the {recorder} recorder: an emulated "
        "replay is Python code, not a GPU launch, and says nothing of one"
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Benchmarks with ``--benchmark-only``, all else without."""
    if collection_path.suffix != ".py":
        return None
    is_benchmark = collection_path.parent.name == _FOLDER
    return True if is_benchmark != is_benchmarking(config) else None


def pytest_report_header(config: pytest.Config) -> str | None:
    """What the figures are."""
    return _meaning(config) if is_benchmarking(config) else None


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """The same once more, beside the tables."""
    if is_benchmarking(config):
        terminalreporter.write_line("")
        terminalreporter.write_line(_meaning(config), bold=True)


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(
    config: pytest.Config, machine_info: dict[str, Any]
) -> None:
    """Figures of different recorders, GPUs or versions of torch are not compared
    without a warning.
    """
    recorder = config.getoption("--recorder")
    machine_info["recorder"] = recorder
    machine_info["gpu"] = torch.cuda.get_device_name() if recorder == "cuda" else "none"
    machine_info["torch"] = torch.__version__


def _meaning(config: pytest.Config) -> str:
    return meaning_of(config.getoption("--recorder"))
