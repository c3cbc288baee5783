"""What every call of ``graphparity`` has in common: exit codes and one-line errors."""

import importlib.metadata
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from graphparity.command.app import app, main
from graphparity.command.errors import CommandError

Plant = Callable[[BaseException], None]


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Plant:
    """Makes the sub-command ``keys`` raise an error."""

    def raising(error: BaseException) -> None:
        def keys() -> None:
            raise error

        (registered,) = [it for it in app.registered_commands if _name(it) == "keys"]
        monkeypatch.setattr(registered, "name", "keys")
        monkeypatch.setattr(registered, "callback", keys)

    return raising


def _name(registered: Any) -> str:
    return registered.name or str(registered.callback.__name__)


ERRORS: dict[str, tuple[BaseException, str]] = {
    "its own": (CommandError("sizes: write 1,2."), "sizes: write 1,2."),
    "missing extra": (
        ModuleNotFoundError("No module named 'jinja2'", name="jinja2"),
        "this needs jinja2, which is not installed: "
        "pip install 'graphparity[conformance]'.",
    ),
    "missing vLLM": (
        ModuleNotFoundError("No module named 'vllm.v1'", name="vllm.v1"),
        "this needs vllm, which is not installed: pip install 'graphparity[vllm]'.",
    ),
    "missing torch": (
        ModuleNotFoundError("No module named 'torch'", name="torch"),
        "this needs torch, which is not installed: pip install graphparity.",
    ),
    "unforeseen": (
        ZeroDivisionError("by\nzero."),
        "ZeroDivisionError: by zero, which is an error of graphparity: "
        "graphparity --debug keys shows where it was raised.",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_is_one_sentence_on_stderr(
    name: str, plant: Plant, capsys: pytest.CaptureFixture[str]
) -> None:
    """With exit code 2, and nothing on stdout."""
    error, sentence = ERRORS[name]
    plant(error)
    assert main(["keys"]) == 2
    assert capsys.readouterr() == ("", f"graphparity: {sentence}\n")


def test_debug_shows_the_traceback(
    plant: Plant, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the sentence."""
    plant(ZeroDivisionError("by zero"))
    assert main(["--debug", "keys"]) == 2
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_ctrl_c_ends_without_a_word(
    plant: Plant, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the exit code of an interrupted program."""
    plant(KeyboardInterrupt())
    assert main(["keys"]) == 130
    assert capsys.readouterr() == ("", "")


BAD_CALLS = {
    "--capture-size 1": ["No such option", "see graphparity keys --help."],
    "--query-len x": ["--query-len", "see graphparity keys --help."],
    "--query-len 0": ["--query-len", "see graphparity keys --help."],
}


@pytest.mark.parametrize("options", BAD_CALLS)
def test_a_wrong_option_is_one_sentence(
    options: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the help to look at."""
    assert main(["keys", *options.split()]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.count("\n") == 1
    for words in BAD_CALLS[options]:
        assert words in err


def test_an_unknown_sub_command_is_one_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As a wrong option."""
    assert main(["key"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "'key'" in err


def test_the_version_is_the_distributions(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a line of its own."""
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "9.8")
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == "graphparity 9.8\n"


def test_help_imports_neither_torch_nor_what_extras_bring() -> None:
    """It is asked for before anything is installed, and should be there at once."""
    heavy = ("torch", "numpy", "vllm", "hypothesis", "pytest", "jinja2", "matplotlib")
    program = (
        "import sys; from graphparity.command.app import main; "
        "main(['--help']); main(['keys', '--help']); "
        f"sys.exit(', '.join(set({heavy!r}) & set(sys.modules)) or 0)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_reader_that_leaves_ends_the_command_quietly() -> None:
    """As ``head`` does: no traceback of a broken pipe."""
    call = [sys.executable, "-m", "graphparity.command", "keys", "--max-num-seqs=4096"]
    started = subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert started.stdout is not None
    assert started.stderr is not None
    started.stdout.close()
    assert started.stderr.read() == b""
    assert started.wait() == 1
