"""One metadata builder as a subject, with the runner's buffers around it.

The state under test and its eager twin share the builder, as a recorded and an eager
step of one engine do: what a build leaves in it is there for the next one.
"""

from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any

import torch

from graphparity.conformance.decode_batches import StepLimits
from graphparity.conformance.subjects.builder_state import LAYER_NAME, BuilderState
from graphparity.conformance.subjects.recorders import make_recorder, recorder_kind
from graphparity.conformance.subjects.subject import (
    MeteredRecorder,
    Subject,
    eager_twin,
)
from graphparity.fastpath.builder_memory import (
    builder_memory,
    member_tensors,
)
from graphparity.fastpath.capture_ladder import Descriptor
from graphparity.fastpath.graph_key import Dispatch, keys_to_record
from graphparity.fastpath.seams import Seam
from graphparity.fastpath.specialize import Specialization, specialize
from graphparity.reference.attention import AttentionGroup, CommonAttentionMetadata
from graphparity.reference.block_table import BlockTables
from graphparity.reference.input_batch import InputBatch, InputBuffers
from graphparity.reference.interface import CUDAGraphMode
from graphparity.reference.kv_cache_interface import (
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
)

BuilderFactory = Callable[[torch.device], Any]
"""Makes a builder whose buffers lie on the device."""


def builder_subject(
    builder_factory: BuilderFactory,
    *,
    query_len: int = 1,
    max_num_reqs: int = 8,
    max_model_len: int = 64,
    block_size: int = 8,
    constants: Collection[str] = (),
    common_attn_metadata_cls: type[Any] = CommonAttentionMetadata,
    recorder: str = "emulated",
    state_cls: type[BuilderState] = BuilderState,
    name: str = "",
) -> Subject:
    """The builder that ``builder_factory`` makes, recorded for every key of a ladder.

    The arguments are those of ``conforms``, and two more: ``state_cls``, the state
    that calls the builder, and ``name``, by which the suite loads the subject.

    Raises:
        TypeError: the builder has no ``build``.
        ValueError: there is no recorder of that name, or a constant is no device
            tensor of the builder.
    """
    device = recorder_kind(recorder).device
    builder = builder_factory(device)
    if not callable(getattr(builder, "build", None)):
        raise TypeError(
            f"builder_factory made a {type(builder).__qualname__}, which has no build: "
            "return a builder with build(common_prefix_len, common_attn_metadata)."
        )
    max_num_tokens = max_num_reqs * query_len
    buffers = InputBuffers(max_num_reqs, max_num_tokens, device)
    num_blocks_a_row = -(-max_model_len // block_size)
    tables = BlockTables(
        [block_size], max_num_reqs, max_num_tokens, [num_blocks_a_row], device
    )
    spec = KVCacheSpec(block_size=block_size)
    group = AttentionGroup(object, [LAYER_NAME], spec, 0, metadata_builders=[builder])
    kv_cache_config = KVCacheConfig(
        num_blocks=1 + max_num_reqs * num_blocks_a_row,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec([LAYER_NAME], spec)],
    )
    dispatch = _ladder(max_num_reqs)
    keys = keys_to_record(
        dispatch,
        max_num_reqs=max_num_reqs,
        query_lens=[query_len],
        full_mode=CUDAGraphMode.FULL,
    )
    made: list[MeteredRecorder] = []

    def recorder_of(state: BuilderState) -> MeteredRecorder:
        runner = _runner_memory(buffers, tables)
        made.append(make_recorder(recorder, runner | _owned(group, device)))
        return made[-1]

    specialization = Specialization(
        CUDAGraphMode.FULL, recorder_of, lambda state: keys, seam=Seam("prepare_attn")
    )
    # Some builders allocate in their first build.
    warm = state_cls(builder, max_model_len, common_attn_metadata_cls)
    _build_largest(warm, buffers, tables)
    state = specialize(state_cls, specialization)(
        builder, max_model_len, common_attn_metadata_cls
    )

    def record() -> None:
        state.capture_inner_cudagraphs(buffers, tables, [[group]], kv_cache_config)

    record()
    owned = _owned(group, device)
    frozen = {f"builders.{LAYER_NAME}.{name}" for name in constants}
    if unknown := sorted(frozen - owned.keys()):
        raise ValueError(
            f"constants {', '.join(unknown)} are no device tensors of the builder: "
            f"name some of {', '.join(sorted(owned)) or 'none'}."
        )
    return Subject(
        name=name or f"{type(builder).__qualname__}:{query_len}",
        state=state,
        eager_state=eager_twin(state, state_cls),
        reference=None,
        recorder=made[0],
        record=record,
        limits=StepLimits(
            query_len, max_num_reqs, max_num_tokens, max_model_len, (block_size,)
        ),
        graph_keys=keys,
        dispatch=dispatch,
        cudagraph_modes=CUDAGraphMode,
        input_batch_cls=InputBatch,
        input_buffers=buffers,
        block_tables=tables,
        req_states=SimpleNamespace(
            all_token_ids=SimpleNamespace(gpu=torch.zeros(1, 1, dtype=torch.int32))
        ),
        attn_groups=[[group]],
        kv_cache_config=kv_cache_config,
        memory=_runner_memory(buffers, tables) | owned,
        builder_outputs=frozenset(owned) - frozen,
        made_by=""
        if name
        else _expression(
            builder_factory,
            common_attn_metadata_cls,
            query_len=query_len,
            max_num_reqs=max_num_reqs,
            max_model_len=max_model_len,
            block_size=block_size,
            constants=tuple(constants),
            recorder=recorder,
        ),
    )


def _ladder(max_num_reqs: int) -> Dispatch:
    """Rungs at powers of two and at ``max_num_reqs``; no graph serves a mixed step."""
    powers = (2**power for power in range(max_num_reqs.bit_length()))
    rungs = sorted({*powers, max_num_reqs})

    def dispatch(
        num_reqs: int,
        num_tokens: int,
        uniform_token_count: int | None,
        num_active_loras: int,
    ) -> Descriptor:
        query_len = uniform_token_count or 1
        # Under data parallelism the tokens may be those of a larger rank.
        needed = max(num_reqs, -(-num_tokens // query_len))
        if uniform_token_count is None or needed > max_num_reqs:
            return Descriptor(CUDAGraphMode.NONE, num_tokens, num_reqs, None)
        rung = next(rung for rung in rungs if rung >= needed)
        return Descriptor(
            CUDAGraphMode.FULL, rung * uniform_token_count, rung, uniform_token_count
        )

    return dispatch


def _build_largest(
    state: BuilderState, buffers: InputBuffers, tables: BlockTables
) -> None:
    num_reqs, num_tokens = buffers.max_num_reqs, buffers.max_num_tokens
    state.prepare_attn(
        InputBatch.make_dummy(num_reqs, num_tokens, buffers),
        CUDAGraphMode.FULL,
        tables.get_dummy_block_tables(num_reqs),
        tables.get_dummy_slot_mappings(num_tokens),
        [],
        KVCacheConfig(num_blocks=1, kv_cache_tensors=[], kv_cache_groups=[]),
    )


def _runner_memory(
    buffers: InputBuffers, tables: BlockTables
) -> dict[str, torch.Tensor]:
    memory = member_tensors(buffers, "input_buffers", buffers.device)
    memory["block_tables.slot_mappings"] = tables.slot_mappings
    memory["block_tables.input_block_tables[0]"] = tables.input_block_tables[0]
    return memory


def _owned(group: AttentionGroup, device: torch.device) -> dict[str, torch.Tensor]:
    """The builder's own tensors, and those of vLLM's objects that it holds."""
    builder = group.get_metadata_builder()
    path = f"builders.{LAYER_NAME}"
    return builder_memory([[group]], device) | member_tensors(builder, path, device)


def _expression(
    builder_factory: BuilderFactory, common_attn_metadata_cls: type[Any], **given: Any
) -> str:
    """The call that makes the subject anew; what has a name is called by it."""
    name = getattr(builder_factory, "__qualname__", repr(builder_factory))
    arguments = [name, *(f"{key}={value!r}" for key, value in given.items())]
    if common_attn_metadata_cls is not CommonAttentionMetadata:
        cls_name = common_attn_metadata_cls.__qualname__
        arguments.append(f"common_attn_metadata_cls={cls_name}")
    return f"builder_subject({', '.join(arguments)})"
