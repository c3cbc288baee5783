"""Every planted fault is caught by the check and the line that it names."""

import os
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from graphparity.conformance.faults.catalogue import FAULTS
from graphparity.conformance.faults.fault import MAKING, Fault, Kind
from graphparity.conformance.faults.hunt import hunt
from graphparity.conformance.faults.report import PROJECTS, Caught, page
from graphparity.conformance.profile import PROFILE

EACH = pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)


@EACH
def test_fault_is_caught_as_its_description_expects(fault: Fault) -> None:
    """By the path and values of the expected line, and by no crash."""
    checks = [] if fault.check == MAKING else [fault.check]
    finding = hunt(fault.subject, fault, checks=checks)
    assert finding is not None, f"{fault.check} caught nothing"
    assert Caught(fault, finding).as_expected, finding.message


def test_every_kind_has_four_faults_or_more() -> None:
    """Under names of their own, each mirroring a report of a known project."""
    counts = Counter(fault.kind for fault in FAULTS.values())
    assert {kind.name: counts[kind] for kind in Kind if counts[kind] < 4} == {}
    assert len(FAULTS) == counts.total()
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


def test_a_finding_can_be_repeated_as_printed() -> None:
    """The program plants the fault by its name, and raises the same lines."""
    fault = FAULTS["longest_length_frozen"]
    finding = hunt(fault.subject, fault, checks=[fault.check])
    assert finding is not None
    assert finding.num_batches == 1
    with pytest.raises(AssertionError) as error:
        exec(finding.repeat, {})
    assert finding.message in str(error.value)


@pytest.mark.skipif(
    "GRAPHPARITY_DOCS" not in os.environ, reason="tox -e tests says where docs/ is"
)
def test_the_page_lists_every_fault_with_what_catches_it() -> None:
    """As the command in it would write it, but for lines and batches."""
    text = Path(os.environ["GRAPHPARITY_DOCS"], "faults.md").read_text()
    missing = [
        name
        for name, fault in FAULTS.items()
        if not any(
            f"| `{name}`" in line
            and fault.words in line
            and f"| {fault.check}: `" in line
            for line in text.splitlines()
        )
    ]
    assert missing == [], "write docs/faults.md again"
    assert text.count("<br>") == len(FAULTS)
    empty = page([Caught(fault, None) for fault in FAULTS.values()])
    headings = [line for line in empty.splitlines() if line.startswith("#")]
    assert [line for line in text.splitlines() if line.startswith("#")] == headings
