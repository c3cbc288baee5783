"""The plug-in's configuration is read strictly, and errors say what to write."""

import pytest

from graphparity.fastpath.fork_decision import Forking
from graphparity.fastpath.proving.verdict import Level
from graphparity.fastpath.vllm_plugin.configuration import (
    Mode,
    PluginConfig,
    plugin_config,
)


@pytest.mark.parametrize(
    "additional_config",
    [None, {}, {"other_plugin": {"mode": "fast"}}, {"graphparity": {}}],
)
def test_without_settings_the_mode_is_off(additional_config: object) -> None:
    """Installing the package alone changes nothing."""
    assert plugin_config(additional_config) == PluginConfig(mode=Mode.OFF)


def test_every_setting_is_read() -> None:
    """All keys at once."""
    settings = {
        "mode": "verify",
        "level": "all",
        "log_interval_s": 0,
        "fork": "never",
    }
    expected = PluginConfig(Mode.VERIFY, Level.ALL, 0.0, Forking.NEVER)
    assert plugin_config({"graphparity": settings}) == expected


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        pytest.param("replay", ["'replay'", "mode"], id="not an object"),
        pytest.param(
            {"mode": "fast"}, ["mode = 'fast'", "off, replay, verify"], id="mode"
        ),
        pytest.param({"mode": None}, ["mode = None", "off, replay, verify"], id="null"),
        pytest.param({"mode": ["off"]}, ["mode = ['off']"], id="list"),
        pytest.param({"Mode": "off"}, ["unknown key 'Mode'", "use mode"], id="case"),
        pytest.param(
            {"fork": True}, ["fork = True", "never, measured, always"], id="fork"
        ),
        pytest.param({"level": 3}, ["level = 3", "off, sampled, all"], id="level"),
        pytest.param({"log_interval_s": -1}, ["log_interval_s = -1"], id="negative"),
        pytest.param({"log_interval_s": "9"}, ["log_interval_s = '9'"], id="text"),
        pytest.param({"log_interval_s": True}, ["log_interval_s = True"], id="bool"),
        pytest.param(
            {"log_interval_s": float("nan")}, ["log_interval_s = nan"], id="nan"
        ),
        pytest.param(
            {"log_interval_s": float("inf")}, ["log_interval_s = inf"], id="infinite"
        ),
        pytest.param(
            {"mode": "on", "levl": "all", "log_interval_s": None},
            ["mode = 'on'", "unknown key 'levl'", "log_interval_s = None"],
            id="all at once",
        ),
    ],
)
def test_what_is_not_understood_is_named(settings: object, names: list[str]) -> None:
    """One error names every key and value at fault."""
    with pytest.raises(ValueError, match="graphparity") as error:
        plugin_config({"graphparity": settings})
    for name in names:
        assert name in str(error.value)
