"""Every planted fault is caught by the check and the line that it names."""

import os
import re
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from graphparity.conformance.comparer import ParityError
from graphparity.conformance.faults.catalogue import FAULTS
from graphparity.conformance.faults.fault import MAKING, Fault, Kind
from graphparity.conformance.faults.hunt import hunt
from graphparity.conformance.faults.report import PROJECTS, Caught, page
from graphparity.conformance.profile import PROFILE

REPEATED = {
    "longest_length_frozen": "decode steps",
    "copies_of_a_dummy_run_land_late": "histories",
    "rows_past_an_upload_taken_for_zeros": "lives",
    "recordings_outlive_the_kv_cache": "renewed",
}
"""Fault -> a check that draws what shows it."""
PLANTABLE = {n: it for n, it in FAULTS.items() if it.is_plantable("emulated")}
EACH = pytest.mark.parametrize("fault", PLANTABLE.values(), ids=PLANTABLE)


@EACH
def test_fault_is_caught_as_its_description_expects(fault: Fault) -> None:
    """By the path and values of the expected line, and by no crash."""
    checks = [] if fault.check == MAKING else [fault.check]
    finding = hunt(fault.subject, fault, checks=checks)
    assert finding is not None, f"{fault.check} caught nothing"
    assert Caught(fault, finding).as_expected, finding.message


def test_every_kind_has_four_faults_or_more() -> None:
    """Without those that need a GPU; each mirrors a report of a known project."""
    counts = Counter(fault.kind for fault in PLANTABLE.values())
    assert {kind.name: counts[kind] for kind in Kind if counts[kind] < 4} == {}
    for fault in FAULTS.values():
        projects = {it.rpartition("#")[0] for it in fault.mirrors if "#" in it}
        assert fault.mirrors
        assert projects <= PROJECTS.keys()
        assert fault.check in {MAKING, *PROFILE}
        assert fault.words.endswith(".")


def test_a_fault_that_does_nothing_is_an_escape() -> None:
    """Its row says so: what catches others is not the planting itself."""
    sound = next(iter(FAULTS.values()))
    idle = replace(sound, plant=nullcontext)
    finding = hunt(idle.subject, idle, checks=[idle.check])
    assert finding is None
    assert not Caught(idle, finding).as_expected


def test_another_message_does_not_count_as_caught() -> None:
    """A fault is caught by the line that it expects, not by just any."""
    fault = FAULTS["slots_in_a_fresh_tensor"]
    other = replace(fault, expected="sliding_window: moved")
    finding = hunt(fault.subject, other, checks=[other.check])
    assert finding is not None
    assert not Caught(other, finding).as_expected


@pytest.mark.parametrize(("name", "check"), REPEATED.items(), ids=REPEATED)
def test_a_finding_can_be_repeated_as_printed(name: str, check: str) -> None:
    """The program plants the fault by its name, and raises the same lines."""
    fault = FAULTS[name]
    finding = hunt(fault.subject, fault, checks=[check])
    assert finding is not None
    with pytest.raises(ParityError) as error:
        exec(finding.repeat, {})
    assert finding.message in str(error.value)


def test_a_fault_that_needs_a_history_names_the_step_of_it() -> None:
    """By its place among what happened before."""
    fault = FAULTS["copies_of_a_dummy_run_land_late"]
    finding = hunt(fault.subject, fault, checks=[fault.check])
    assert finding is not None
    place = re.search(r"\], item (\d) of a history$", finding.message, re.MULTILINE)
    assert place is not None
    assert int(place[1]) > 1


@pytest.mark.skipif(
    "GRAPHPARITY_DOCS" not in os.environ, reason="tox -e tests says where docs/ is"
)
def test_the_page_lists_every_fault_with_what_catches_it() -> None:
    """As the command in it would write it, but for lines and batches."""
    text = Path(os.environ["GRAPHPARITY_DOCS"], "faults.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    missing = [
        name
        for name, fault in FAULTS.items()
        if not any(
            f"| `{name}`" in row and fault.words in row and fault.check in row
            for row in rows
        )
    ]
    assert missing == [], "write docs/faults.md again"
    assert len(rows) == len(FAULTS)
    empty = page([Caught(fault, None) for fault in PLANTABLE.values()], [])
    headings = [line for line in empty.splitlines() if line.startswith("## K")]
    assert [line for line in text.splitlines() if line.startswith("## K")] == headings
