"""The outputs that docs/command.md shows are those of the command as it is."""

import os
import re
import shlex
from pathlib import Path

import pytest

from graphparity.command.app import main
from graphparity.conformance.builders import examples

pytestmark = pytest.mark.skipif(
    "GRAPHPARITY_DOCS" not in os.environ, reason="tox -e tests says where docs/ is"
)
FOLDER = str(Path(examples.__file__).parent)
WIDTH = "88"
"""Columns of the terminal that the page shows."""


def test_every_titled_output_is_the_commands(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the letter, but for the folder of the installation."""
    monkeypatch.setenv("COLUMNS", WIDTH)
    page = Path(os.environ["GRAPHPARITY_DOCS"], "command.md").read_text()
    blocks = re.findall(
        r'```text title="graphparity (.*?)"\n(.*?)\n```', page, re.DOTALL
    )
    assert len(blocks) == 4
    for call, expected in blocks:
        main(shlex.split(call))
        out = capsys.readouterr().out.replace(FOLDER, ".../builders")
        actual = "\n".join(line.rstrip() for line in out.splitlines()).strip("\n")
        assert actual == expected, call


def test_the_picture_is_the_commands(tmp_path: Path) -> None:
    """Of the first ladder."""
    folder = Path(os.environ["GRAPHPARITY_DOCS"])
    page = (folder / "command.md").read_text()
    (call, *_) = re.findall(r'title="graphparity (keys .*?)"', page)
    file = tmp_path / "keys.svg"
    assert main([*shlex.split(call), f"--svg={file}"]) == 0
    assert file.read_text() == (folder / "img" / "keys.svg").read_text()
