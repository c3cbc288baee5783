"""Builds that a benchmark times: a subject's whole, and each attention group's alone.

A group is built alone by a state that is recorded once more while the other groups have
no layers: what is timed is then its eager build, and the replay of its own recording.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from graphparity.conformance.checks import check_step
from graphparity.conformance.decode_batches import DecodeBatch
from graphparity.conformance.recorded_anew import recorded_anew, recorded_groups
from graphparity.conformance.staging import stage
from graphparity.conformance.subjects.subject import MeteredGraph, Subject
from graphparity.conformance.tally import key_id
from graphparity.fastpath.graph_key import GraphKey
from graphparity.fastpath.metadata_graphs import MetadataGraphs
from graphparity.fastpath.partial_build import masked

ALL_GROUPS = "all groups"


@dataclass(frozen=True)
class BuildCase:
    """The metadata build of one key, of all groups of a subject or of one."""

    subject: Subject
    group: str
    """``ALL_GROUPS``, or an attention group's name."""
    key: GraphKey

    @property
    def name(self) -> str:
        """Subject, group and key in one line."""
        return f"{self.subject.name}, {self.group}, key {key_id(self.key)}"


@dataclass(frozen=True)
class CheckedBuild:
    """A build that was checked and staged: two calls that make the same metadata."""

    eager: Callable[[], object]
    replayed: Callable[[], object]
    num_nodes: int
    """Nodes of the recording; with none, a replay launches nothing."""


def build_cases(subject: Subject, keys: Sequence[GraphKey]) -> list[BuildCase]:
    """The whole build of every key, then that of every group, where there are more."""
    groups = {ALL_GROUPS: subject}
    indices = recorded_groups(subject)
    if len(indices) > 1:
        names = subject.group_of_path.of_kv_cache_group
        groups |= {names[index][0]: group_alone(subject, index) for index in indices}
    return [BuildCase(it, name, key) for name, it in groups.items() for key in keys]


def group_alone(subject: Subject, index: int) -> Subject:
    """``subject`` with one KV-cache group, recorded anew; its memory is the subject's
    own, so that the two take turns in whole steps.
    """
    groups = masked(subject.attn_groups, {index})
    return recorded_anew(replace(subject, attn_groups=groups), subject.graph_keys)


def few_keys(subject: Subject) -> list[GraphKey]:
    """The smallest key, the smallest with padding if there is any, and the largest."""
    keys = sorted(subject.graph_keys)
    padded = [key for key in keys if key.num_tokens < key.num_tokens_after_padding]
    return list(dict.fromkeys([keys[0], *padded[:1], keys[-1]]))


@contextmanager
def checked_build(case: BuildCase) -> Iterator[CheckedBuild]:
    """Check a step of the case, then stage it; until the end its replays go uncounted,
    as outside of the suite.

    Raises:
        ParityError: its replay does not equal its eager build, or was none.
    """
    subject = case.subject
    batch = longest_batch(subject, case.key)
    subject.recorder.last_replayed = None
    check_step(subject, batch)
    launched = subject.recorder.last_replayed
    staged = stage(subject, batch)
    with _uncounted(subject.state, case.key):
        yield CheckedBuild(
            eager=lambda: staged.run(subject, subject.eager_state),
            replayed=lambda: staged.run(subject, subject.state),
            num_nodes=launched.num_nodes if launched else 0,
        )


def longest_batch(subject: Subject, key: GraphKey) -> DecodeBatch:
    """Requests of about the model's length."""
    longest = subject.limits.max_model_len
    lengths = tuple(longest - row for row in range(key.num_reqs))
    return DecodeBatch(key, lengths, tuple(range(key.num_reqs)), seed=1)


@contextmanager
def _uncounted(state: Any, key: GraphKey) -> Iterator[None]:
    """A state of ``specialize`` launches its graph of ``key`` itself meanwhile; another
    state's recordings are its own affair.
    """
    graphs = getattr(state, "graphs", None)
    if not isinstance(graphs, MetadataGraphs) or key not in graphs.recordings:
        yield
        return
    recording = graphs.recordings[key]
    assert isinstance(recording.graph, MeteredGraph), "a subject's recorder counts"
    if recording.launch is not None:
        launch = recording.graph.graph.replay
        graphs._recordings[key] = recording._replace(launch=launch)
    try:
        yield
    finally:
        graphs._recordings[key] = recording
