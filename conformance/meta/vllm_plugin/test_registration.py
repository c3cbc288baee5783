"""What is put between vLLM and its choice of a model state."""

import importlib.metadata
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from graphparity.fastpath.vllm_plugin import register, registration
from graphparity.fastpath.vllm_plugin.seam_table import SeamAnswer


class ModelState:
    """The state that vLLM chose."""


class Model:
    """A model, to which the choice belongs."""


def _resolve(vllm_config: Any, model: Any) -> type[Any]:
    return ModelState


def _engine(**settings: Any) -> SimpleNamespace:
    return SimpleNamespace(additional_config={"graphparity": settings})


@pytest.mark.parametrize("additional_config", [{}, {"graphparity": {"mode": "off"}}])
def test_mode_off_answers_what_vllm_answers(additional_config: dict[str, Any]) -> None:
    """The very class, whatever the seam table would say of it."""
    resolve = registration._plugging_in(_resolve)
    vllm_config = SimpleNamespace(additional_config=additional_config)
    assert resolve(vllm_config, Model()) is ModelState


def test_a_state_outside_the_seam_table_is_left_alone_and_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In the log and in the report."""
    answer = SeamAnswer(None, "it already records")
    monkeypatch.setattr(registration, "seam_of", lambda state_cls: answer)
    model = Model()
    resolve = registration._plugging_in(_resolve)
    assert resolve(_engine(mode="replay"), model) is ModelState
    assert f"{__name__}.ModelState alone: it already records" in caplog.text
    runner = SimpleNamespace(model_state=ModelState(), model=model)
    report = registration.report_of_model(runner)
    assert report.left_alone == "it already records"
    assert report.model_state == f"{__name__}.ModelState"


def test_a_bad_value_is_found_before_the_engine_is_configured() -> None:
    """The engine's own work has not begun."""
    calls: list[Any] = []
    create_engine_config = registration._checking_configuration(calls.append)
    with pytest.raises(ValueError, match="mode = 'fast'"):
        create_engine_config(_engine(mode="fast"))
    assert not calls
    create_engine_config(_engine(mode="verify"))
    assert len(calls) == 1


def test_wrapping_twice_wraps_once() -> None:
    """A plug-in may be registered more than once."""
    owner = SimpleNamespace(resolve=_resolve)
    registration._wrap(owner, "resolve", registration._plugging_in)
    once = owner.resolve
    registration._wrap(owner, "resolve", registration._plugging_in)
    assert owner.resolve is once
    assert vars(once)[registration._WRAPPED] is _resolve


@pytest.fixture
def another_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if vLLM had moved all its modules."""
    for name in [it for it in sys.modules if it.partition(".")[0] == "vllm"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    registration._warn_once.cache_clear()


@pytest.mark.parametrize(
    ("version", "found"),
    [
        ("0.34.1+cu130", "found vLLM 0.34.1+cu130, and"),
        ("0.3.3", "found vLLM 0.3.3, and"),
        ("", "found no distribution of vLLM, and"),
    ],
)
@pytest.mark.usefixtures("another_vllm")
def test_another_version_is_left_alone_with_one_warning(
    version: str,
    found: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing of it is imported, in any mode, however often it registers."""
    monkeypatch.setattr(registration, "vllm_version", lambda: version)
    register()
    register()
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert found in record.getMessage()
    assert "supports 0.33.x" in record.getMessage()


@pytest.mark.usefixtures("another_vllm")
def test_the_supported_version_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above would pass as well if nothing were ever installed."""
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.33.1")
    with pytest.raises(ModuleNotFoundError, match=r"vllm\.engine"):
        register()
