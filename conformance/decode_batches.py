"""Descriptions of steps, and the strategies that draw them.

A description is plain, small and repeatable: what is bulky (block ids, stale
tails, token ids) follows from a seed, so that a failing step prints as one line.
"""

from dataclasses import dataclass, replace

from hypothesis import strategies as st

from graphparity.fastpath.graph_key import GraphKey


@dataclass(frozen=True)
class StepLimits:
    """The bounds of the steps a subject can be given."""

    query_len: int
    max_num_reqs: int
    max_num_tokens: int
    max_model_len: int
    edges: tuple[int, ...] = ()
    """Positions at which the metadata changes shape: block sizes, windows."""


BlockIds = tuple[tuple[tuple[int, ...], ...], ...]
"""[num_kv_cache_groups][num_reqs] the blocks of each request, in order."""


@dataclass(frozen=True)
class DecodeBatch:
    """One uniform decode step."""

    key: GraphKey
    seq_lens: tuple[int, ...]
    """[num_reqs] tokens of each request, those of this step included."""
    req_state_indices: tuple[int, ...]
    """[num_reqs] batch row -> index of the request in the runner's state."""
    seed: int = 0
    """Seeds block ids, token ids, and what earlier steps left in the tails."""
    block_ids: BlockIds | None = None
    """The requests' blocks; None draws distinct ones from the seed."""


@dataclass(frozen=True)
class PrefillBatch:
    """One step of prompt chunks, which no recording serves."""

    query_lens: tuple[int, ...]
    computed_lens: tuple[int, ...]
    """[num_reqs] tokens of each request computed before this step."""
    replay_starts: tuple[int, ...]
    """[num_reqs] first position of which the request holds window KV."""
    req_state_indices: tuple[int, ...]
    seed: int = 0
    full_key: GraphKey | None = None
    """The key of the FULL graph that serves chunks shaped like a decode step; None for
    a step that no graph serves."""
    block_ids: BlockIds | None = None
    """As those of a ``DecodeBatch``."""


@dataclass(frozen=True)
class DummyBatch:
    """A FULL dummy step of an idle rank (``for_capture=True``)."""

    key: GraphKey


@dataclass(frozen=True)
class EagerBatch:
    """A decode step that the runner does not serve by a FULL graph."""

    batch: DecodeBatch
    is_piecewise: bool = False
    """Whether piecewise graphs serve it: its tokens are padded to those of the key, its
    requests are not."""


@dataclass(frozen=True)
class UnrecordedBatch:
    """A decode step that a FULL graph serves after the recordings were released."""

    batch: DecodeBatch


@dataclass(frozen=True)
class VarlenBatch:
    """A FULL decode step whose query lengths are only bounded on the host."""

    batch: DecodeBatch


Step = (
    DecodeBatch | PrefillBatch | DummyBatch | EagerBatch | UnrecordedBatch | VarlenBatch
)


@dataclass(frozen=True)
class Finished:
    """A request ends between two steps."""

    req_index: int
    """Its row in the runner's state."""


@dataclass(frozen=True)
class NewKVCache:
    """A new KV cache is adopted between two steps; recordings are released."""


@dataclass(frozen=True)
class RecordedAgain:
    """Every key is recorded anew between two steps."""


Event = Finished | NewKVCache | RecordedAgain
"""What happens between steps."""


def seed_of(step: Step) -> int:
    """The seed of what a step's description leaves open; 0 for a dummy step."""
    seed: int = getattr(getattr(step, "batch", step), "seed", 0)
    return seed


def sequence_lengths(limits: StepLimits) -> st.SearchStrategy[int]:
    """Lengths at, just before and just past every edge, and in between.

    Shrinks to the query length, the shortest sequence a decode step can have.
    """
    query_len, longest = limits.query_len, limits.max_model_len
    near_edges = {
        edge * multiple + delta
        for edge in limits.edges
        for multiple in range(1, longest // edge + 1)
        for delta in (-1, 0, 1, query_len)
    } | {query_len, longest, longest - 1}
    at_edges = sorted(n for n in near_edges if query_len <= n <= longest)
    return st.one_of(st.sampled_from(at_edges), st.integers(query_len, longest))


@st.composite
def decode_batches(draw: st.DrawFn, limits: StepLimits, key: GraphKey) -> DecodeBatch:
    """Decode steps of one key; two rows or more never all have one length.

    Shrinks to short sequences in state order with seed 0.
    """
    lengths = draw(
        st.lists(sequence_lengths(limits), min_size=key.num_reqs, max_size=key.num_reqs)
    )
    indices = draw(st.permutations(range(limits.max_num_reqs)))
    return DecodeBatch(
        key=key,
        seq_lens=_unequal(lengths, limits),
        req_state_indices=tuple(indices[: key.num_reqs]),
        seed=draw(st.integers(0, 2**16)),
    )


def batches_of_any_key(
    limits: StepLimits, keys: tuple[GraphKey, ...]
) -> st.SearchStrategy[DecodeBatch]:
    """Decode steps of the keys by turns; shrinks to one of the first."""
    return st.sampled_from(keys).flatmap(lambda key: decode_batches(limits, key))


def _unequal(lengths: list[int], limits: StepLimits) -> tuple[int, ...]:
    """The lengths, with the first moved by one where all are equal and can differ."""
    can_differ = limits.query_len < limits.max_model_len
    if can_differ and len(lengths) > 1 and len(set(lengths)) == 1:
        step = -1 if lengths[0] == limits.max_model_len else 1
        lengths = [lengths[0] + step, *lengths[1:]]
    return tuple(lengths)


@st.composite
def prefill_batches(draw: st.DrawFn, limits: StepLimits) -> PrefillBatch:
    """Steps of one to three prompt chunks, some of which replay their window.

    Shrinks to one short chunk of a new request that replays nothing.
    """
    shortest = limits.query_len + 1
    longest = min(limits.max_num_tokens, limits.max_model_len) // 3
    query_lens = draw(st.lists(st.integers(shortest, longest), min_size=1, max_size=3))
    computed = [
        draw(st.integers(0, limits.max_model_len - query_len))
        for query_len in query_lens
    ]
    return draw(_chunks(limits, query_lens, computed))


@st.composite
def prefills_shaped_like_decodes(
    draw: st.DrawFn, limits: StepLimits, keys: tuple[GraphKey, ...]
) -> PrefillBatch:
    """Steps of prompt chunks of the decode query length each, which a FULL graph
    serves: all of them first chunks, or later ones.

    Shrinks to first chunks, of the first key.
    """
    key = draw(st.sampled_from(keys))
    longest = draw(st.sampled_from([0, limits.max_model_len - key.query_len]))
    lengths = st.integers(min(1, longest), longest)
    computed = [draw(lengths) for _ in range(key.num_reqs)]
    batch = draw(_chunks(limits, [key.query_len] * key.num_reqs, computed))
    return replace(batch, full_key=key)


@st.composite
def _chunks(
    draw: st.DrawFn, limits: StepLimits, query_lens: list[int], computed: list[int]
) -> PrefillBatch:
    starts = [
        draw(st.sampled_from(sorted({0, length // 2, length}))) for length in computed
    ]
    indices = draw(st.permutations(range(limits.max_num_reqs)))
    return PrefillBatch(
        query_lens=tuple(query_lens),
        computed_lens=tuple(computed),
        replay_starts=tuple(starts),
        req_state_indices=tuple(indices[: len(query_lens)]),
        seed=draw(st.integers(0, 2**16)),
    )


def histories(
    limits: StepLimits, keys: tuple[GraphKey, ...]
) -> st.SearchStrategy[list[Step]]:
    """Short histories: decode steps of any key between prefills, some of which look
    like a decode step, dummy steps, and steps that no graph serves.

    Each ends in two decode steps. Shrinks to those two alone, of the first key.
    """
    decodes = batches_of_any_key(limits, keys)
    others = st.one_of(
        decodes,
        prefill_batches(limits),
        prefills_shaped_like_decodes(limits, keys),
        st.sampled_from(keys).map(DummyBatch),
        decodes.map(EagerBatch),
        decodes.map(VarlenBatch),
    )
    return st.tuples(st.lists(others, max_size=4), decodes, decodes).map(
        lambda drawn: [*drawn[0], drawn[1], drawn[2]]
    )
