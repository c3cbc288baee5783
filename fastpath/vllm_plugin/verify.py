"""Mode ``verify``: every replayed step is built eagerly as well, and compared.

In the order that lets nothing hide: poison what the builders write, image of the
memory, replay, image, put back, build eagerly, image, compare. The step then goes on
with an eager build over the memory as it was before the poison. Elements that eager
builds leave undefined are not compared (``proving.fresh_memory``), nor is where a
forked build's branches have maps of their own (``own_maps``). A host bound may
exceed the eager build's, and what follows it on the device may differ, if it is what
an eager build with the recording's bounds gives. Anything else that differs is an
error with every path.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from graphparity.fastpath.builder_memory import builder_memory
from graphparity.fastpath.decode_batch import worst_case_bounds
from graphparity.fastpath.fork_decision import ForkDecision
from graphparity.fastpath.graph_key import GraphKey, graph_key
from graphparity.fastpath.metadata_graphs import AttnMetadata
from graphparity.fastpath.partial_build import GroupSplit
from graphparity.fastpath.proving.group_memory import (
    image_of,
    is_inside,
    restore,
    same_content,
    span_of,
)
from graphparity.fastpath.proving.leaves import Leaf, objects
from graphparity.fastpath.proving.replays import (
    BuildResult,
    eager_result,
    result_of,
)
from graphparity.fastpath.vllm_plugin.own_maps import as_serial
from graphparity.fastpath.vllm_plugin.rank_agreement import (
    VerifyError,
    raise_on_every_rank,
)
from graphparity.fastpath.vllm_plugin.runner_group_build import distinct

_MAX_SHOWN = 4
_POISONABLE = (
    torch.bool,
    torch.uint8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
)


class VerifyingModelState:
    """Mixed in before a plugged-in state whose mode is ``verify``."""

    plugged: Any
    graphs: Any
    fork_decision: ForkDecision
    _split: GroupSplit
    _specialization: Any
    max_model_len: int
    _fresh: Mapping[GraphKey, Any]
    _may_skip_staging = False
    """A step that skips its staging would pass by the comparison."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.num_verified = 0
        self._places: dict[str, int] = {}
        self._handed_out: dict[str, Any] = {}
        """Path -> what the last replayed step's metadata held there."""

    def _replay_or_build(
        self,
        input_batch: Any,
        cudagraph_mode: object,
        block_tables: tuple[torch.Tensor, ...],
        slot_mappings: torch.Tensor,
        attn_groups: list[list[Any]],
        kv_cache_config: Any,
        for_capture: bool = False,
        ubatch_idx: int = 0,
        **kwargs: Any,
    ) -> AttnMetadata:
        """The step's metadata: that of the eager build, compared with the replay.

        Raises:
            VerifyError: they differ, on this rank or on another one.
        """
        base: Any = super()
        step = (input_batch, cudagraph_mode, block_tables, slot_mappings, attn_groups)
        rest = {"for_capture": for_capture, "ubatch_idx": ubatch_idx, **kwargs}
        reason = base._eager_reason(
            input_batch, cudagraph_mode, for_capture, ubatch_idx
        )
        served: AttnMetadata = {}
        error: VerifyError | None = None
        is_recorded = graph_key(input_batch) in self.graphs.recordings
        try:
            if reason is None and is_recorded:
                served = self._verified(*step, kv_cache_config, **rest)
            else:
                served = base._replay_or_build(*step, kv_cache_config, **rest)
        except VerifyError as found:
            error = found
        if reason is None:
            raise_on_every_rank(error)
        return served

    def _verified(
        self,
        input_batch: Any,
        cudagraph_mode: object,
        block_tables: tuple[torch.Tensor, ...],
        slot_mappings: torch.Tensor,
        attn_groups: list[list[Any]],
        kv_cache_config: Any,
        **rest: Any,
    ) -> AttnMetadata:
        """The eager metadata of a recorded step, compared with the replay."""
        base: Any = super()
        step = (cudagraph_mode, block_tables, slot_mappings, attn_groups)
        key = graph_key(input_batch)
        memory = _memory_of(input_batch, block_tables, slot_mappings)
        memory |= builder_memory(attn_groups, input_batch.seq_lens.device)
        before = image_of(memory)
        poison(memory, self.plugged.written_paths)
        poisoned = image_of(memory)
        handed_out = described(
            base._replay_or_build(input_batch, *step, kv_cache_config, **rest)
        )
        replayed = result_of(memory, handed_out)
        built: list[AttnMetadata] = []

        def eager(batch: Any) -> BuildResult:
            def build() -> AttnMetadata:
                built.append(
                    described(
                        base._build_eagerly(batch, *step, kv_cache_config, **rest)
                    )
                )
                return built[-1]

            return eager_result(memory, poisoned, build, replayed)

        bounds = worst_case_bounds(key, self.max_model_len)
        as_recorded = eager(replace(input_batch, seq_lens_cpu_upper_bound=bounds))
        as_eager, is_fresh = eager(input_batch), key in self._fresh
        if self._split.refused or len(self.fork_decision.branches) > 1:
            replayed = as_serial(replayed, as_eager, poisoned, memory)
        problems = [
            *self._step_problems(input_batch, key, memory),
            *differences(replayed, as_eager, as_recorded, memory, is_fresh=is_fresh),
        ]
        if is_fresh:
            problems += self._reused(handed_out, built[0], built[-1])
        if problems:
            raise VerifyError(message(key, problems))
        self.num_verified += 1
        restore(memory, before)
        served: AttnMetadata = base._build_eagerly(
            input_batch, *step, kv_cache_config, **rest
        )
        return served

    def _step_problems(
        self, input_batch: Any, key: GraphKey, memory: Mapping[str, torch.Tensor]
    ) -> Iterator[str]:
        """What a key takes for granted of its steps and does not hold."""
        lens = {int(it) for it in input_batch.num_scheduled_tokens[: key.num_reqs]}
        if lens != {key.query_len}:
            yield (
                f"num_scheduled_tokens: {sorted(lens)}, but should be "
                f"{key.query_len} for every request"
            )
        drafts = input_batch.num_draft_tokens
        expected = key.num_reqs * (key.query_len - 1)
        if drafts != expected:
            yield f"num_draft_tokens: {drafts}, but should be {expected}"
        num_zero = getattr(self, "_num_zero_replay_starts", 0)
        if num_zero and bool(vars(self)["_replay_start"][:num_zero].any()):
            yield f"_replay_start[:{num_zero}]: not zero, but should be known zeros"
        for path, tensor in memory.items():
            if path.startswith("inputs."):
                place = tensor.data_ptr()
                first = self._places.setdefault(path, place)
                if place != first:
                    yield f"{path}: at {place:#x}, but should be at {first:#x}"

    def _reused(
        self, handed_out: AttnMetadata, one: AttnMetadata, other: AttnMetadata
    ) -> Iterator[str]:
        """Objects of the last step, where two eager builds make two."""
        last, self._handed_out = self._handed_out, objects(handed_out)
        first, second = objects(one), objects(other)
        for path, it in self._handed_out.items():
            is_shared = first.get(path) is second.get(path)
            if it is last.get(path) and not is_shared:
                yield f"{path}: the last step's object, but should be made anew"


def differences(
    replayed: BuildResult,
    eager: BuildResult,
    as_recorded: BuildResult,
    memory: Mapping[str, torch.Tensor],
    *,
    is_fresh: bool = False,
) -> Iterator[str]:
    """Every path at which a replay differs from the eager build, in one form:
    *path: actual, but should be expected*.

    Args:
        replayed: what the replay left.
        eager: what the eager build left.
        as_recorded: what an eager build with the recording's host bounds leaves.
        memory: the buffers of runner and builders.
        is_fresh: whether the replay's metadata was made anew, so that not even a host
            bound may differ.
    """
    if is_fresh:
        as_recorded = eager
    for path, expected in eager.memory.items():
        actual, frozen = replayed.memory[path], as_recorded.memory[path]
        follows = same_content(actual, frozen)
        if not follows and not same_content(actual, expected):
            yield _difference(path, actual, expected)
        elif follows and not same_content(frozen, expected):
            yield from _unbounded(path, replayed, eager)
    spans = [span_of(tensor) for tensor in memory.values()]
    for path in sorted({*replayed.leaves} | {*eager.leaves}):
        if path not in replayed.leaves or path not in eager.leaves:
            here, there = path in replayed.leaves, path in eager.leaves
            yield f"{path}: {_presence(here)}, but should be {_presence(there)}"
            continue
        yield from _leaf_differences(path, replayed, eager, as_recorded, spans)


def _leaf_differences(
    path: str,
    replayed: BuildResult,
    eager: BuildResult,
    as_recorded: BuildResult,
    spans: list[tuple[int, int]],
) -> Iterator[str]:
    mine, theirs = replayed.leaves[path], eager.leaves[path]
    if not _equal(mine, theirs):
        frozen = as_recorded.leaves.get(path)
        if frozen is None or not _equal(mine, frozen):
            yield _difference(path, mine.value, theirs.value)
        elif _is_in(mine, spans) or not _exceeds(mine, theirs):
            yield from _unbounded(path, replayed, eager)
    if mine.place is not None and _is_in(theirs, spans) and mine.place != theirs.place:
        yield f"{path}: at {mine.place}, but should be at {theirs.place}"


def _is_in(leaf: Leaf, spans: list[tuple[int, int]]) -> bool:
    """Whether a leaf lies in the runner's or the builders' device memory."""
    return leaf.place is not None and is_inside(leaf.place.address, spans)


def _unbounded(path: str, replayed: BuildResult, eager: BuildResult) -> Iterator[str]:
    """A difference that follows a host value: allowed if the metadata tells its
    readers of a bound that only grew.
    """
    grew = [
        _exceeds(leaf, eager.leaves[it]) and not _equal(leaf, eager.leaves[it])
        for it, leaf in replayed.leaves.items()
        if leaf.is_number and it in eager.leaves
    ]
    if not any(grew):
        yield f"{path}: follows a frozen host value, but should follow none"


def _equal(one: Leaf, other: Leaf) -> bool:
    if isinstance(one.value, torch.Tensor) and isinstance(other.value, torch.Tensor):
        return same_content(one.value, other.value)
    if one.is_opaque or other.is_opaque:
        return type(one.value) is type(other.value)
    return type(one.value) is type(other.value) and bool(one.value == other.value)


def _exceeds(mine: Leaf, theirs: Leaf) -> bool:
    """Whether a host number, or a host tensor of them, is a bound of the other."""
    if mine.is_number and theirs.is_number:
        return bool(mine.value >= theirs.value)
    one, other = mine.value, theirs.value
    return (
        isinstance(one, torch.Tensor)
        and isinstance(other, torch.Tensor)
        and one.device.type == "cpu"
        and one.shape == other.shape
        and bool((one >= other).all())
    )


def _memory_of(
    input_batch: Any,
    block_tables: tuple[torch.Tensor, ...],
    slot_mappings: torch.Tensor,
) -> dict[str, torch.Tensor]:
    """What the runner hands a step, by path."""
    return {
        "inputs.seq_lens": input_batch.seq_lens,
        "inputs.query_start_loc": input_batch.query_start_loc,
        "inputs.positions": input_batch.positions,
        "inputs.slot_mappings": slot_mappings,
        **{f"inputs.block_tables[{i}]": it for i, it in enumerate(block_tables)},
    }


def described(attn_metadata: AttnMetadata) -> AttnMetadata:
    """Every metadata object once, and under "layers" which layers share it."""
    firsts = distinct(attn_metadata)
    name_of = {id(metadata): name for name, metadata in firsts.items()}
    shared = {name: name_of[id(it)] for name, it in attn_metadata.items()}
    return {**firsts, "layers": shared}


def poison(memory: Mapping[str, torch.Tensor], written: frozenset[str]) -> None:
    """Random small values where the builders were seen to write: small, so that one
    wrongly read as an index leads to a wrong row and not to a stranger's memory.
    """
    for path in sorted(written & memory.keys()):
        tensor = memory[path]
        if tensor.dtype in _POISONABLE:
            tensor.random_(0, 2 if tensor.dtype is torch.bool else 7)


def _difference(path: str, actual: Any, expected: Any) -> str:
    if not isinstance(actual, torch.Tensor) or not isinstance(expected, torch.Tensor):
        return f"{path}: {actual!r}, but should be {expected!r}"
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return (
            f"{path}: {actual.dtype} of shape {tuple(actual.shape)}, but should be "
            f"{expected.dtype} of shape {tuple(expected.shape)}"
        )
    wrong = (actual != expected).nonzero().tolist()
    shown = [tuple(index) for index in wrong[:_MAX_SHOWN]]
    more = f" and {len(wrong) - len(shown)} more" if len(wrong) > len(shown) else ""
    return (
        f"{path}[{', '.join(map(str, shown))}{more}]: "
        f"{[actual[it].item() for it in shown]}, but should be "
        f"{[expected[it].item() for it in shown]}"
    )


def _presence(is_present: bool) -> str:
    return "present" if is_present else "absent"


def message(key: GraphKey, problems: list[str]) -> str:
    """What a ``VerifyError`` says of all that differs in a step of ``key``."""
    lines = "\n".join(f"  {problem}" for problem in problems)
    return (
        f"a replayed metadata build differs from the eager one at {len(problems)} "
        f"path(s) [{key}]\n{lines}\nServing stops: set the plug-in's mode to off, or "
        "its level to all to have the builder refused."
    )
