"""Every ``--help`` fits a terminal of 80 by 24, and its example works as shown."""

import re
import shlex

import pytest

from graphparity.command.app import app, main

COLUMNS, LINES = 80, 24

NO_EXIT_0 = {"doctor": 1}
"""Sub-command -> exit code of its example where there is no GPU."""
NOT_RUN: dict[str, str] = {}
"""Sub-command -> why its example is not run here."""

SUB_COMMANDS = [
    it.name or it.callback.__name__ for it in app.registered_commands if it.callback
]


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The size that help is made for, in plain text."""
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    monkeypatch.setenv("NO_COLOR", "1")


def help_of(capsys: pytest.CaptureFixture[str], *sub_command: str) -> str:
    """What ``--help`` prints."""
    assert main([*sub_command, "--help"]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("sub_command", [(), *((name,) for name in SUB_COMMANDS)])
def test_help_fits_a_terminal(
    sub_command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """With the prompt below it."""
    lines = help_of(capsys, *sub_command).rstrip().splitlines()
    assert max(map(len, lines)) <= COLUMNS
    assert len(lines) < LINES


@pytest.mark.parametrize("name", SUB_COMMANDS)
def test_help_shows_json_and_a_working_example(
    name: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Run as shown, on one line, in an empty folder."""
    text = help_of(capsys, name)
    assert "--json" in text
    examples = re.findall(r"Example: graphparity (.+)", text)
    assert examples
    if name in NOT_RUN:
        pytest.skip(NOT_RUN[name])
    monkeypatch.chdir(tmp_path_factory.mktemp(name))
    for example in examples:
        assert main(shlex.split(example)) == NO_EXIT_0.get(name, 0), example
        assert capsys.readouterr().out
