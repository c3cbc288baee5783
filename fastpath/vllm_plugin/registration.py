"""Puts the plug-in between vLLM and its choice of a model state.

Two functions of vLLM are wrapped, once a process. ``EngineArgs.create_engine_config``
is where the front end first has ``additional_config`` at hand, for ``vllm serve`` and
``LLM`` alike, before the model's files are read; the plug-in is loaded just before,
when the arguments are made. ``resolve_model_state_cls`` is looked up in its module by
``init_model_state`` at call time, which the runner has imported by name.
"""

import functools
import logging
import weakref
from collections.abc import Callable
from typing import Any

from graphparity.fastpath.vllm_plugin.configuration import Mode, plugin_config
from graphparity.fastpath.vllm_plugin.eligibility import unmet_words
from graphparity.fastpath.vllm_plugin.model_state import plug
from graphparity.fastpath.vllm_plugin.recorder import (
    RecorderFactory,
    cuda_recorder,
    why_no_cuda_recorder,
)
from graphparity.fastpath.vllm_plugin.report import Report, unmet_message
from graphparity.fastpath.vllm_plugin.runner_link import link_runner
from graphparity.fastpath.vllm_plugin.seam_table import seam_of
from graphparity.fastpath.vllm_plugin.state_report import report_of
from graphparity.fastpath.vllm_plugin.vllm_version import (
    is_supported,
    unsupported_message,
    vllm_version,
)

logger = logging.getLogger(__name__)

_WRAPPED = "_graphparity_wraps"
_RECORDERS: list[RecorderFactory] = [cuda_recorder]
"""The last one records."""
_LEFT_ALONE: "weakref.WeakKeyDictionary[Any, Report]" = weakref.WeakKeyDictionary()
"""Model -> why its state is vLLM's own."""


def install(make_recorder: RecorderFactory | None = None) -> None:
    """Wrap both functions; a second call wraps nothing again.

    Another version of vLLM is left as it is: one warning, and nothing of it is
    imported, for what is imported here may not be there.

    Args:
        make_recorder: what records from now on, for tests; CUDA's if nothing was said.
    """
    if not is_supported(version := vllm_version()):
        _warn_once(unsupported_message(version))
        return
    from vllm.engine.arg_utils import EngineArgs  # noqa: PLC0415
    from vllm.v1.worker.gpu import model_states  # noqa: PLC0415

    if make_recorder is not None:
        _RECORDERS.append(make_recorder)
    _wrap(EngineArgs, "create_engine_config", _checking_configuration)
    _wrap(model_states, "resolve_model_state_cls", _plugging_in)


@functools.cache
def _warn_once(message: str) -> None:
    """A plug-in may be registered more than once in a process."""
    _show_log()
    logger.warning("%s", message)


def report_of_model(runner: Any) -> Report:
    """The report of a runner's model state, plugged in or not."""
    state = getattr(runner, "model_state", None)
    if hasattr(state, "plugged"):
        return report_of(state)
    model = getattr(runner, "model", None)
    left_alone = _LEFT_ALONE.get(model) if model is not None else None
    return left_alone or _left_alone(type(state), Mode.OFF, "the mode is off")


def _wrap(owner: Any, name: str, wrapper: Callable[[Any], Any]) -> None:
    original = getattr(owner, name)
    if hasattr(original, _WRAPPED):
        return
    wrapped = functools.wraps(original)(wrapper(original))
    setattr(wrapped, _WRAPPED, original)
    setattr(owner, name, wrapped)


def _checking_configuration(create_engine_config: Any) -> Any:
    def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
        plugin_config(self.additional_config)
        return create_engine_config(self, *args, **kwargs)

    return checked


def _plugging_in(resolve: Any) -> Any:
    def resolve_model_state_cls(vllm_config: Any, model: Any) -> type[Any]:
        state_cls: type[Any] = resolve(vllm_config, model)
        config = plugin_config(vllm_config.additional_config)
        if config.mode is Mode.OFF:
            return state_cls
        _show_log()
        answer = seam_of(state_cls)
        name = f"{state_cls.__module__}.{state_cls.__qualname__}"
        if answer.seam is None:
            logger.warning("graphparity leaves %s alone: %s.", name, answer.why_not)
            _LEFT_ALONE[model] = _left_alone(state_cls, config.mode, answer.why_not)
            return state_cls
        needs = unmet_words(vllm_config)
        make_recorder = _RECORDERS[-1]
        if make_recorder is cuda_recorder and (why_not := why_no_cuda_recorder()):
            needs.append(f"a GPU to record on ({why_not})")
        if needs:
            logger.warning("%s", unmet_message(name, needs))
            why = f"it needs {'; '.join(needs)}"
            _LEFT_ALONE[model] = _left_alone(state_cls, config.mode, why)
            return state_cls
        link_runner()
        return plug(state_cls, answer.seam, config, make_recorder)

    return resolve_model_state_cls


def _left_alone(state_cls: type[Any], mode: Mode, why: str) -> Report:
    name = f"{state_cls.__module__}.{state_cls.__qualname__}"
    return Report(model_state=name, mode=mode.value, left_alone=why)


def _show_log() -> None:
    """Let vLLM's log handlers show this package's lines as well: vLLM configures its
    own logger alone.
    """
    ours, vllm_s = logging.getLogger("graphparity"), logging.getLogger("vllm")
    if ours.handlers or not vllm_s.handlers:
        return
    for handler in vllm_s.handlers:
        ours.addHandler(handler)
    ours.setLevel(vllm_s.level)
    ours.propagate = False
