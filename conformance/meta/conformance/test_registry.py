"""Subjects are found by name, and a bad name is answered with a remedy."""

from collections.abc import Callable

import pytest

from graphparity.conformance.meta.conformance import faulty_subjects as faults
from graphparity.conformance.subjects.recorders import make_recorder
from graphparity.conformance.subjects.registry import load_subject
from graphparity.conformance.subjects.subject import Subject
from graphparity.conformance.subjects.torch_decode import torch_decode

LENGTH_REMEDY = "write FAMILY:QUERY_LEN, for example torch-decode:1."
FAMILY_REMEDY = "or the address module:callable of your own."

BAD_NAMES = {
    "''": ("", "''", LENGTH_REMEDY),
    "'torch-decode'": ("torch-decode", "'torch-decode'", LENGTH_REMEDY),
    "'torch-decode:'": ("torch-decode:", "'torch-decode:'", LENGTH_REMEDY),
    "'torch-decode:0'": ("torch-decode:0", "'torch-decode:0'", LENGTH_REMEDY),
    "'torch-decode:-1'": ("torch-decode:-1", "'torch-decode:-1'", LENGTH_REMEDY),
    "'torch-decode:two'": ("torch-decode:two", "'torch-decode:two'", LENGTH_REMEDY),
    "':1'": (":1", "':1'", LENGTH_REMEDY),
    "'no-such-family:1'": ("no-such-family:1", "'no-such-family'", FAMILY_REMEDY),
    "'no.such.module:make:1'": (
        "no.such.module:make:1",
        "'no.such.module:make'",
        FAMILY_REMEDY,
    ),
    "'json:absent:1'": ("json:absent:1", "'json:absent'", FAMILY_REMEDY),
    "'json:1'": ("json:1", "'json'", FAMILY_REMEDY),
    "'decimal:Decimal:1' (a class)": (
        "decimal:Decimal:1",
        "the class Decimal has no classmethod subject(name, query_len, recorder)",
        FAMILY_REMEDY,
    ),
    "'math:pi:1' (not callable)": ("math:pi:1", "'math:pi'", FAMILY_REMEDY),
}


def one_sentence(message: str) -> bool:
    """Whether a message is one line that ends as a sentence."""
    return "\n" not in message and message.endswith(".")


@pytest.mark.parametrize(("name", "value", "remedy"), BAD_NAMES.values(), ids=BAD_NAMES)
def test_bad_name_is_refused_with_value_and_remedy(
    name: str, value: str, remedy: str
) -> None:
    """One sentence: what was asked for, and what to write."""
    with pytest.raises(ValueError, match="subject") as caught:
        load_subject(name)
    message = str(caught.value)
    assert value in message
    assert remedy in message
    assert one_sentence(message)


@pytest.mark.parametrize(
    ("maker", "parts"),
    [
        (
            faults.not_a_subject,
            [
                "made a str",
                "its family must make a graphparity.conformance.subjects.subject",
            ],
        ),
        (
            faults.lacks_methods,
            [
                "SimpleNamespace lacks add_request, remove_request, apply_staged_",
                "prepare_dummy_inputs, prepare_attn: a subject implements",
            ],
        ),
    ],
    ids=["returns a str", "state without methods"],
)
def test_maker_of_something_else_is_refused(
    maker: Callable[[str, int, str], object], parts: list[str]
) -> None:
    """One sentence: what it made, and what it must make."""
    with pytest.raises(TypeError, match="subject") as caught:
        load_subject(f"{faults.ADDRESS}:{maker.__name__}:1")
    message = str(caught.value)
    assert [part for part in parts if part not in message] == []
    assert one_sentence(message)


@pytest.mark.parametrize("make", [load_subject, torch_decode])
def test_unknown_recorder_is_refused(make: Callable[..., Subject]) -> None:
    """One sentence that lists the recorders there are."""
    args = ("torch-decode:1",) if make is load_subject else ("torch-decode:1", 1)
    with pytest.raises(ValueError, match="unknown recorder 'tape'") as caught:
        make(*args, "tape")
    assert "use one of " in str(caught.value)
    assert "emulated" in str(caught.value)
    assert one_sentence(str(caught.value))


def test_recorder_is_metered() -> None:
    """Replays are counted by the recorder, never told by the state."""
    subject = load_subject("torch-decode:1")
    assert subject.recorder.name == "emulated"
    assert subject.recorder.num_captures == len(subject.graph_keys)
    assert make_recorder("emulated", {}).num_captures == 0


def test_subject_is_made_once_a_process() -> None:
    """Recording takes time, and every test of a subject shares it."""
    assert load_subject("torch-decode:2") is load_subject("torch-decode:2")
    assert load_subject("torch-decode:2") is not load_subject("torch-decode:1")


def test_address_names_a_family() -> None:
    """A subject of one's own needs no registration."""
    name = f"{faults.ADDRESS}:{faults.never_replays.__name__}:3"
    subject = load_subject(name)
    assert (subject.name, subject.limits.query_len) == (name, 3)
