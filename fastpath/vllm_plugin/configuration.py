"""The plug-in's configuration: ``additional_config["graphparity"]`` of vLLM.

It is free-form JSON to vLLM, so it is read strictly here: whatever is not understood
is an error that names it and says what to write instead.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from graphparity.fastpath.fork_decision import Forking
from graphparity.fastpath.proving.verdict import Level

KEY = "graphparity"
EXAMPLE = '--additional-config \'{"graphparity": {"mode": "replay"}}\''


class Mode(Enum):
    """What the plug-in does with a supported model state."""

    OFF = "off"
    """Nothing: vLLM's own state serves."""
    REPLAY = "replay"
    """FULL decode steps replay their recorded metadata builds."""
    VERIFY = "verify"
    """They replay, then build eagerly, compare, and serve on the eager result."""


@dataclass(frozen=True)
class PluginConfig:
    """How one engine uses the plug-in."""

    mode: Mode = Mode.OFF
    level: Level = Level.SAMPLED
    """How thoroughly builders are judged before they are recorded."""
    log_interval_s: float = 60.0
    """Seconds between log lines with the counters; 0 writes none."""
    fork: Forking = Forking.MEASURED
    """Whether KV-cache groups may be recorded as concurrent branches."""


def plugin_config(additional_config: object) -> PluginConfig:
    """The configuration within vLLM's ``additional_config``.

    Raises:
        ValueError: all that is not understood, each with its remedy.
    """
    if not isinstance(additional_config, Mapping) or KEY not in additional_config:
        return PluginConfig()
    settings = additional_config[KEY]
    if not isinstance(settings, Mapping):
        raise ValueError(  # noqa: TRY004, as for any other bad value
            f"additional_config[{KEY!r}] is {settings!r}, but should be an object such "
            f"as in {EXAMPLE}."
        )
    problems = [_problem(str(key), value) for key, value in settings.items()]
    found = [problem for problem in problems if problem]
    if found:
        raise ValueError(f"additional_config[{KEY!r}] has {'; '.join(found)}.")
    return PluginConfig(**{key: _READERS[key](settings[key]) for key in settings})


def _problem(key: str, value: object) -> str:
    reader = _READERS.get(key)
    if reader is None:
        return f"the unknown key {key!r} = {value!r}: use {', '.join(_READERS)}"
    try:
        reader(value)
    except (ValueError, TypeError):
        return f"{key} = {value!r}: use {_EXPECTED[key]}"
    return ""


def _interval(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    if not 0 <= value < float("inf"):
        raise ValueError
    return float(value)


_READERS: dict[str, Callable[[Any], Any]] = {
    "mode": Mode,
    "level": Level,
    "log_interval_s": _interval,
    "fork": Forking,
}
_EXPECTED = {
    "mode": ", ".join(mode.value for mode in Mode),
    "level": ", ".join(level.value for level in Level),
    "log_interval_s": "seconds as a number of 0 (no log line) or more",
    "fork": ", ".join(forking.value for forking in Forking),
}
