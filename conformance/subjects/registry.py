"""Subjects by name, loaded when asked for.

A subject's name is ``FAMILY:QUERY_LEN``; a family is one of ``FAMILIES`` or an address:
``module:callable`` of a function that makes a ``Subject`` of a decode query length, or
``module:MyState`` of a class whose classmethod ``subject`` does.
"""

import functools
import importlib
from collections.abc import Callable, Iterable
from typing import Any

from graphparity.conformance.subjects.subject import Subject, require_model_state

FAMILIES = {
    "deepseek-v41-blackwell": "graphparity.conformance.subjects.deepseek_v41:blackwell",
    "deepseek-v41-hopper": "graphparity.conformance.subjects.deepseek_v41:hopper",
    "deepseek-v41-hopper-no-bounded-replay": (
        "graphparity.conformance.subjects.deepseek_v41:hopper_no_bounded_replay"
    ),
    "vllm-specialized-decode": (
        "graphparity.conformance.subjects.deepseek_v41:vllm_specialized_decode"
    ),
    **{
        f"default-{suffix}": (
            f"graphparity.conformance.subjects.default_model_state:{maker}"
        )
        for suffix, maker in {
            "flash-attn": "flash_attn",
            "flash-attn-off-ladder": "flash_attn_off_ladder",
            "flash-attn-two-groups": "flash_attn_two_groups",
            "flash-attn-window": "flash_attn_window",
            "triton-attn": "triton_attn",
            "triton-attn-two-groups": "triton_attn_two_groups",
        }.items()
    },
    **{
        f"mamba-hybrid-{suffix}": (
            f"graphparity.conformance.subjects.mamba_hybrid:{maker}"
        )
        for suffix, maker in {
            "gdn": "gdn",
            "linear-attn": "linear_attn",
            "mamba2": "mamba2",
            "recoverssm": "recoverssm",
            "short-conv": "short_conv",
        }.items()
    },
    "torch-decode": "graphparity.conformance.subjects.torch_decode:torch_decode",
    "torch-decode-off-ladder": (
        "graphparity.conformance.subjects.torch_decode:off_ladder"
    ),
}
"""Family name -> address of the function that makes its subjects."""

VLLM_FAMILIES = frozenset(FAMILIES) - {"torch-decode", "torch-decode-off-ladder"}
"""The families whose subjects are made of vLLM's own classes."""

QUERY_LENS = (1, 2, 3)
"""The decode query lengths each family is checked at, in tokens a request."""

SINGLE_TOKEN_FAMILIES = frozenset({"mamba-hybrid-linear-attn"})
"""The families of which vLLM has FULL graphs at query length 1 alone."""

SubjectMaker = Callable[[str, int, str], Subject]
"""Makes the subject of (name, query length, recorder name)."""


@functools.cache
def load_subject(name: str, recorder: str = "emulated") -> Subject:
    """As ``fresh_subject``, but one object a process."""
    return fresh_subject(name, recorder)


def fresh_subject(name: str, recorder: str = "emulated") -> Subject:
    """A newly made subject of that name, set up and recorded.

    Raises:
        ValueError: the name, its family or its recorder is unknown.
        TypeError: the family makes something that is no subject, or whose state
            lacks a method of the interface.
    """
    subject = subject_maker(name)(name, int(name.rpartition(":")[2]), recorder)
    if not isinstance(subject, Subject):
        raise TypeError(
            f"{name!r} made a {type(subject).__name__}: its family must make a "
            "graphparity.conformance.subjects.subject.Subject."
        )
    require_model_state(subject.state)
    return subject


def subject_maker(name: str) -> SubjectMaker:
    """What makes the subject of that name; nothing is set up yet.

    Raises:
        ValueError: the name or its family is unknown.
    """
    family, _, query_len = name.rpartition(":")
    if not family or not query_len.isdigit() or int(query_len) < 1:
        raise ValueError(
            f"subject {name!r} does not end in a query length: write FAMILY:QUERY_LEN, "
            "for example torch-decode:1."
        )
    module_name, _, attribute = FAMILIES.get(family, family).partition(":")
    try:
        maker: SubjectMaker = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise _unknown(family, error) from error
    if not callable(maker):
        raise _unknown(family, f"{attribute} is a {type(maker).__name__}")
    if isinstance(maker, type):
        return _maker_of_class(family, maker)
    return maker


def _maker_of_class(family: str, cls: type[Any]) -> SubjectMaker:
    """A state's class says itself how a subject is made of it."""
    maker: SubjectMaker | None = getattr(cls, "subject", None)
    if not callable(maker):
        raise _unknown(
            family,
            f"the class {cls.__qualname__} has no classmethod subject(name, query_len, "
            "recorder)",
        )
    return maker


def query_lens_of(family: str) -> tuple[int, ...]:
    """The query lengths that a family stands for where none is named."""
    return QUERY_LENS[:1] if family in SINGLE_TOKEN_FAMILIES else QUERY_LENS


def names_of_subjects(names: Iterable[str]) -> list[str]:
    """The names, but for a family its subjects, one a query length."""
    return [
        full_name
        for name in names
        for full_name in (
            [name]
            if name.rpartition(":")[2].isdigit()
            else [f"{name}:{query_len}" for query_len in query_lens_of(name)]
        )
    ]


def is_vllm(name: str) -> bool:
    """Whether the subject of that name is made of vLLM's own classes."""
    return name.rpartition(":")[0] in VLLM_FAMILIES


def _unknown(family: str, reason: object) -> ValueError:
    return ValueError(
        f"unknown subject {family!r} ({reason}): use one of {', '.join(FAMILIES)}, or "
        "the address module:callable of your own."
    )
