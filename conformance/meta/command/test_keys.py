"""``graphparity keys``: what a ladder records, as table, JSON and picture."""

import json
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from graphparity.command.app import main

GAPPED = ["--query-len=3", "--capture-sizes=1,2,4,8,16,24", "--max-num-seqs=12"]
"""Requests of three tokens on sizes that are no multiples of it."""

KEYS = [
    (1, 1, 3, 3),
    (2, 2, 6, 6),
    (3, 3, 9, 9),
    (4, 6, 12, 18),
    (5, 6, 15, 18),
    (6, 6, 18, 18),
    (7, 8, 21, 24),
    (8, 8, 24, 24),
]
"""Its keys, by hand."""


def output(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """What ``graphparity keys`` prints."""
    assert main(["keys", *options]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def as_json(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    """The same for programs."""
    answer: dict[str, Any] = json.loads(output(capsys, "--json", *options))
    return answer


def test_the_keys_of_a_gapped_ladder(capsys: pytest.CaptureFixture[str]) -> None:
    """With the graphs, the padding, and the steps past the last graph."""
    answer = as_json(capsys, *GAPPED)
    assert [tuple(key.values()) for key in answer["keys"]] == KEYS
    assert [it["num_reqs"] for it in answer["rungs"]] == [1, 2, 3, 6, 8]
    tokens, padded = (sum(key[i] for key in KEYS) for i in (2, 3))
    assert answer["padding_share"] == pytest.approx(1 - tokens / padded)
    assert answer["eager"] == [
        {"first_num_reqs": 9, "last_num_reqs": 12, "mode": "NONE"}
    ]


@pytest.mark.parametrize(
    ("mode", "eager"),
    [("FULL_AND_PIECEWISE", "PIECEWISE"), ("FULL_DECODE_ONLY", "NONE")],
)
def test_steps_off_the_ladder_run_by_the_mode(
    mode: str, eager: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sizes 16 and 24 are no FULL graph for 12 requests, but a piecewise one; past
    them nothing is.
    """
    sizes = ["--capture-sizes=1,2,4,8,16,24", f"--mode={mode}"]
    answer = as_json(capsys, *sizes, "--max-num-seqs=12")
    assert answer["eager"] == [
        {"first_num_reqs": 9, "last_num_reqs": 12, "mode": eager}
    ]
    assert list(answer["without_graph"]) == ["16", "24"]


def test_a_gap_of_two_modes_is_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    """Piecewise up to the largest size, without a graph past it."""
    answer = as_json(capsys, "--capture-sizes=4,11", "--max-num-seqs=12")
    assert [(it["last_num_reqs"], it["mode"]) for it in answer["eager"]] == [
        (12, "NONE")
    ]
    answer = as_json(
        capsys, "--capture-sizes=4,11", "--max-num-seqs=12", "--query-len=2"
    )
    assert [(it["last_num_reqs"], it["mode"]) for it in answer["eager"]] == [
        (5, "PIECEWISE"),
        (12, "NONE"),
    ]


def test_the_table_has_every_key_and_what_is_not_recorded(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A row a key with its padding, and a sentence for the rest."""
    out = output(capsys, *GAPPED)
    rows = [line.split() for line in out.splitlines()]
    assert ["5", "6", "15", "18", "17%", "██"] in rows
    assert [row[:4] for row in rows if row[4:5] and row[4].endswith("%")] == [
        [*map(str, key)] for key in KEYS
    ]
    assert "8 keys on 5 FULL graphs; 10% of their tokens are padding." in out
    assert "Steps of 9 to 12 requests of 3 tokens fit no FULL graph" in out


def test_a_ladder_without_keys_has_no_table(capsys: pytest.CaptureFixture[str]) -> None:
    """It says why."""
    out = output(capsys, "--query-len=9", "--capture-sizes=8")
    assert "0 keys on 0 FULL graphs" in out
    assert "Capture size 8 has no FULL graph of decodes: rounded up to whole" in out
    assert "num_reqs" not in out


@pytest.mark.parametrize("options", [GAPPED, ["--max-num-seqs=300"], ["--query-len=9"]])
def test_the_picture_has_a_column_a_step(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As high as its tokens, within the picture, whatever the ladder."""
    file = tmp_path / "ladder.svg"
    answer = as_json(capsys, *options, f"--svg={file}")
    root = ET.parse(file).getroot()
    bars = [it for it in root.iter() if it.get("class") in {"real", "padding", "eager"}]
    columns = [it for it in bars if it.get("width") != "12.00"]
    padded = [
        it for it in answer["keys"] if it["num_tokens"] < it["num_tokens_after_padding"]
    ]
    eager = sum(
        it["last_num_reqs"] - it["first_num_reqs"] + 1 for it in answer["eager"]
    )
    assert Counter(it.get("class") for it in columns) == Counter(
        real=len(answer["keys"]), padding=len(padded), eager=eager
    )
    heights = [
        float(it.get("height", "")) for it in columns if it.get("class") == "real"
    ]
    tokens = [it["num_tokens"] for it in answer["keys"]]
    scale = heights[-1] / tokens[-1] if tokens else 0.0
    assert heights == pytest.approx([scale * it for it in tokens], abs=0.1)
    for it in bars:
        assert 0 <= float(it.get("x", "")) <= 880
        assert 0 <= float(it.get("y", "")) <= 480


BAD_VALUES = {
    "--capture-sizes=1,x": "--capture-sizes '1,x' holds 'x', which is no positive",
    "--capture-sizes=": "--capture-sizes '' holds '', which is no positive",
    "--capture-sizes=0,4": "--capture-sizes '0,4' holds '0', which is no positive",
    "--svg=/nowhere/a.svg": "--svg /nowhere/a.svg cannot be written (No such file",
    "--mode=FULL": "'FULL'",
}


@pytest.mark.parametrize("option", BAD_VALUES)
def test_a_bad_value_is_named(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    """In one sentence with what to write."""
    assert main(["keys", option]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert BAD_VALUES[option] in err
    assert err.count("\n") == 1
