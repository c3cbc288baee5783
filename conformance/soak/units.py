"""The units of a round: the random checks of the profile, cut small enough.

Each keeps failing examples of its own, so that one meets the check that it failed.
"""

from collections.abc import Callable, Mapping
from functools import partial

from graphparity.conformance import profile
from graphparity.conformance.partial_check import can_be_built_eagerly
from graphparity.conformance.recorded_anew import recorded_groups
from graphparity.conformance.run_profiles import SOAK
from graphparity.conformance.subjects.registry import fresh_subject, is_vllm
from graphparity.conformance.subjects.subject import Subject
from graphparity.conformance.tally import Tally, key_id
from graphparity.fastpath.graph_key import GraphKey

Unit = Callable[[Subject, Tally], None]

WHOLE = ("histories", "eager steps", "reference")
"""Checks of the profile that are a unit each."""


def units_of(subject: Subject) -> Mapping[str, Unit]:
    """Name -> check, in the order of a round."""
    by_key = {
        f"decode steps {key_id(key)}": partial(_decode_steps, key)
        for key in subject.graph_keys
    }
    groups = recorded_groups(subject)
    by_group = {
        f"group {group} built eagerly": partial(_partly_recorded, group)
        for group in (groups if len(groups) > 1 else ())
    }
    lives = {
        "lives": partial(_lives, releases=False),
        "renewed": partial(_lives, releases=True),
    }
    return by_key | {name: profile.PROFILE[name] for name in WHOLE} | by_group | lives


def _decode_steps(key: GraphKey, subject: Subject, tally: Tally) -> None:
    profile.replays_equal_eager(subject, key, tally)


def _partly_recorded(group: int, subject: Subject, tally: Tally) -> None:
    can_be_built_eagerly(subject, group, tally, num_histories=SOAK.max_examples // 4)


def _lives(subject: Subject, tally: Tally, *, releases: bool) -> None:
    """On a subject of their own: its recordings may be renewed."""
    vllm = is_vllm(subject.name)
    num_lives, num_rules = SOAK.lives_of(is_vllm=vllm, releases=releases)
    profile.lives_equal_eager(
        fresh_subject(subject.name, subject.recorder.name),
        tally,
        releases=releases,
        num_lives=num_lives,
        num_rules=num_rules,
    )
