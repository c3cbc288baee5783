"""``graphparity explain``: a verdict with its source line, or one sentence."""

import importlib.metadata
import json
from pathlib import Path

import pytest

from graphparity.command import explanation
from graphparity.command.app import main
from graphparity.conformance.builders import examples
from graphparity.fastpath.proving.verdict import Level, Verdict

EXAMPLES = examples.__name__

MODULE = """
import torch

from graphparity.conformance.builders.examples import Sound

class NoBuild:
    pass

class NeedsMore:
    def __init__(self, max_num_reqs, device):
        pass

class RaisingBuild(Sound):
    def build(self, common_prefix_len, common_attn_metadata):
        raise KeyError("no such layer")

def make_raising(device):
    raise RuntimeError("no memory.\\nnone at all")

def make_sound(device):
    return Sound(device)

number = 3
"""

WRONG = {
    "nowhere_at_all:make": "no module 'nowhere_at_all' is installed or lies in this",
    "my_builders": "'my_builders' is no address: write MODULE:BUILDER",
    "my_builders:nothing": "my_builders has no 'nothing': it has NoBuild, NeedsMore",
    "my_builders:number": "my_builders:number is of type int: name a function",
    "my_builders:NoBuild": "my_builders:NoBuild makes an object of type NoBuild, which",
    "my_builders:NeedsMore": "my_builders:NeedsMore needs max_num_reqs, device: name a",
    "my_builders:make_raising": "raised RuntimeError (no memory. none at all) at",
    "my_builders:RaisingBuild": "a build of my_builders:RaisingBuild raised KeyError",
    "my_broken:make": "importing my_broken raised ZeroDivisionError",
    "my_lacking:make": "importing my_lacking raised ModuleNotFoundError (No module",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the call, with modules in it."""
    (tmp_path / "my_builders.py").write_text(MODULE)
    (tmp_path / "my_broken.py").write_text("1 / 0\n")
    (tmp_path / "my_lacking.py").write_text("import nothing_of_this_name\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("address", WRONG)
@pytest.mark.usefixtures("folder")
def test_a_wrong_address_is_one_sentence(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With exit code 2, also where the builder's own code raises."""
    assert main(["explain", address]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert WRONG[address] in err


def test_a_builder_in_this_folder_is_judged(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By a factory; its fields are told."""
    assert main(["explain", "my_builders:make_sound", "--query-len=2"]) == 0
    out = capsys.readouterr().out
    assert "Sound may be recorded." in out
    assert "block_counts   exact" in out


def test_a_refusal_shows_the_source_line(capsys: pytest.CaptureFixture[str]) -> None:
    """With file, number and text of the line at fault."""
    assert main(["explain", f"{EXAMPLES}:FrozenLength"]) == 1
    out = capsys.readouterr().out
    lines = Path(examples.__file__).read_text().splitlines()
    number = next(i for i, it in enumerate(lines, 1) if "rows.fill_(" in it)
    assert f"{examples.__file__}:{number}\n" in out
    assert f"> {number:4} {lines[number - 1]}\n" in out
    assert "HOST_VALUES" in out


def test_the_verdict_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    """The prover's own, and the source line."""
    assert main(["explain", f"{EXAMPLES}:FrozenLength", "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["recordable"] is False
    assert answer["refusal"]["check"] == "HOST_VALUES"
    assert answer["source_line"].startswith("rows.fill_(")


def test_a_builder_of_vllm_is_named_by_its_case(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And judged as the page of verdicts was; its sizes are the case's."""
    asked = []

    def judge_case(name: str, level: Level) -> Verdict:
        asked.append((name, level))
        return Verdict("vllm.Builder", recordable=True, level=level)

    monkeypatch.setattr(explanation, "require_supported_vllm", lambda: None)
    monkeypatch.setattr(explanation, "judge_case", judge_case)
    assert main(["explain", "gdn", "--level=all"]) == 0
    assert asked == [("gdn", Level.ALL)]
    assert "vllm.Builder may be recorded." in capsys.readouterr().out
    assert main(["explain", "gdn", "--query-len=2"]) == 2
    assert "--query-len cannot be chosen for 'gdn'" in capsys.readouterr().err


def test_a_builder_of_another_vllm_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing of it is imported."""
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.34.0")
    assert main(["explain", "gdn"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "0.34.0" in err
