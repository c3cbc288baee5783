"""Metadata made anew: the step's bounds, objects of its own, and else as captured."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

from graphparity.fastpath.fresh_metadata import FreshMetadata, NotExplainedError
from graphparity.fastpath.fresh_replays import FreshReplays
from graphparity.fastpath.graph_key import GraphKey
from graphparity.fastpath.metadata_graphs import Recording
from graphparity.fastpath.proving.leaves import leaves
from graphparity.fastpath.proving.verdict import Field, FieldClass

LONGEST = 7


class Schedule:
    """What a forward fills, once an object."""

    def __init__(self) -> None:
        self.tiles: list[int] | None = None


@dataclass
class Decode:
    """A part of the metadata."""

    max_seq_len: int
    seq_lens: torch.Tensor


@dataclass
class Metadata:
    """Of one layer or several."""

    max_seq_len: int
    num_tokens: int
    decode: Decode
    schedule: Schedule
    wrapper: Schedule
    caches: dict[str, Any] = field(default_factory=dict)
    tables: tuple[torch.Tensor, ...] = (torch.zeros(2),)
    index_cache: torch.Tensor | None = None


def captured() -> dict[str, Metadata]:
    """The metadata of a recording: two layers share it, and two their decode part."""
    decode = Decode(128, torch.zeros(4))
    first = Metadata(128, 4, decode, Schedule(), Schedule())
    return {
        "a": first,
        "b": first,
        "c": Metadata(128, 4, decode, Schedule(), first.wrapper),
    }


def fields_of(metadata: dict[str, Metadata], **changes: Field) -> dict[str, Field]:
    """What the prover would find: bounds and schedules of their own."""
    found = {}
    for path, leaf in leaves(metadata).items():
        field_class = FieldClass.EXACT
        if path.endswith("max_seq_len"):
            field_class = FieldClass.BOUND
        elif leaf.is_opaque:
            field_class = FieldClass.IDENTITY
        found[path] = Field(
            path,
            field_class,
            "",
            is_longest=path.endswith("max_seq_len"),
            is_made_anew=path.endswith(".schedule"),
        )
    return found | {it.path: it for it in changes.values()}


def test_bounds_are_the_step_s_and_all_else_is_as_captured() -> None:
    """In every part; a tensor is the captured one, at its place."""
    recorded = captured()
    fresh = FreshMetadata(recorded, fields_of(recorded))
    made, before = leaves(fresh.make(LONGEST)), leaves(recorded)
    assert made.keys() == before.keys()
    for path, leaf in made.items():
        if path.endswith("max_seq_len"):
            assert leaf.value == LONGEST
        else:
            assert leaf.place == before[path].place
            assert leaf.is_opaque or isinstance(leaf.value, torch.Tensor | int | None)
    assert recorded["a"].max_seq_len == recorded["c"].decode.max_seq_len == 128


def test_every_step_has_objects_of_its_own() -> None:
    """What a reader leaves in them is not met by the next one."""
    recorded = captured()
    fresh = FreshMetadata(recorded, fields_of(recorded))
    first, second = fresh.make(LONGEST), fresh.make(LONGEST)
    first["a"].schedule.tiles = [1, 2]
    first["a"].index_cache = torch.ones(1)
    first["a"].caches["a"] = 1
    assert second["a"] is not first["a"]
    for metadata in (second["a"], fresh.make(LONGEST)["a"], recorded["a"]):
        assert metadata.schedule.tiles is metadata.index_cache is None
        assert metadata.caches == {}


def test_what_eager_builds_share_is_shared() -> None:
    """Layers, parts, and an object that every eager build returns again."""
    recorded = captured()
    made = FreshMetadata(recorded, fields_of(recorded)).make(LONGEST)
    assert made["a"] is made["b"]
    assert made["a"].decode is made["c"].decode
    assert made["a"].schedule is not made["c"].schedule
    assert made["a"].wrapper is recorded["a"].wrapper


class Pair(NamedTuple):
    """A tuple of a class of its own."""

    first: int


UNEXPLAINED: dict[str, tuple[Any, str]] = {
    "a schedule on the device that follows a bound": (
        Field("a.decode.seq_lens", FieldClass.BOUND_AFFECTING, ""),
        "a.decode.seq_lens is on the device, and depends on a host bound",
    ),
    "a bound of something else": (
        Field("a.decode.max_seq_len", FieldClass.BOUND, ""),
        "a.decode.max_seq_len is a host upper bound",
    ),
}


@pytest.mark.parametrize("case", UNEXPLAINED)
def test_a_field_that_the_evidence_does_not_explain_is_told(case: str) -> None:
    """By its path."""
    changed, message = UNEXPLAINED[case]
    recorded = captured()
    with pytest.raises(NotExplainedError, match=message):
        FreshMetadata(recorded, fields_of(recorded, changed=changed))


def test_what_was_not_compared_is_told() -> None:
    """A leaf without evidence, an attribute that is no field, a class of tuples."""
    recorded = captured()
    fields = fields_of(recorded)
    judged = {path: it for path, it in fields.items() if path != "a.num_tokens"}
    with pytest.raises(NotExplainedError, match=r"a\.num_tokens was not judged"):
        FreshMetadata(recorded, judged)
    recorded["a"].tables = Pair(1)  # type: ignore[assignment]  # planted
    with pytest.raises(NotExplainedError, match=r"a\.tables was not judged"):
        FreshMetadata(recorded, fields)
    recorded = captured()
    recorded["c"].extra = 1  # type: ignore[attr-defined]  # planted
    with pytest.raises(NotExplainedError, match="c holds extra, which is no field"):
        FreshMetadata(recorded, fields_of(recorded))
    with pytest.raises(NotExplainedError, match="layer is a str"):
        FreshMetadata({"layer": "metadata"}, {})


KEY, OTHER = GraphKey(1, 2, 1, 2), GraphKey(2, 2, 2, 2)


class Replays(FreshReplays):
    """A state that replays two keys."""

    def __init__(self, complete: Any = None) -> None:
        self.graphs: Any = SimpleNamespace(
            recordings={
                key: Recording(SimpleNamespace(), captured(), None)
                for key in (KEY, OTHER)
            },
            withdrawn={},
        )
        self.graphs.withdraw = self._withdraw
        self._complete_replay = complete

    def _withdraw(self, keys: list[GraphKey], error: Exception) -> None:
        self.graphs.withdrawn |= dict.fromkeys(keys, error)


def _batch(key: GraphKey) -> Any:
    return SimpleNamespace(
        **key._asdict(), seq_lens_cpu_upper_bound=torch.tensor([LONGEST, 0])
    )


def test_only_the_keys_that_are_read_on_the_host_are_made_anew() -> None:
    """Another key's step gets the captured objects, and a state without such keys is
    left as it is.
    """
    state = Replays()
    recorded = state.graphs.recordings[KEY].attn_metadata
    state.make_anew((), {})
    assert state._complete_replay is None
    state.make_anew((KEY,), fields_of(recorded))
    assert state.num_made_anew == 1
    complete: Any = state._complete_replay
    assert complete(recorded, _batch(KEY))["a"].max_seq_len == LONGEST
    assert complete(recorded, _batch(OTHER)) is recorded


def test_a_partly_recorded_step_is_completed_after_it_was_made_anew() -> None:
    """By what completes the state's replays, with the step's own arguments."""

    def complete(replayed: Any, input_batch: Any, *step: Any, **kwargs: Any) -> Any:
        return {**replayed, "built": (step, kwargs)}

    state = Replays(complete)
    recorded = state.graphs.recordings[KEY].attn_metadata
    state.make_anew((KEY,), fields_of(recorded))
    completed: Any = state._complete_replay
    made = completed(recorded, _batch(KEY), 1, causal=True)
    assert made["built"] == ((1,), {"causal": True})
    assert made["a"].max_seq_len == LONGEST


def test_a_key_that_cannot_be_made_anew_is_given_up() -> None:
    """With the reason and what to do; the others are kept."""
    state = Replays()
    fields = fields_of(state.graphs.recordings[KEY].attn_metadata)
    state.graphs.recordings[OTHER] = Recording(SimpleNamespace(), {"z": 1}, None)
    state.make_anew((KEY, OTHER), fields)
    assert state.num_made_anew == 1
    ((key, error),) = state.graphs.withdrawn.items()
    assert key == OTHER
    assert "read on the host" in str(error)
    assert "z is a int" in str(error)
