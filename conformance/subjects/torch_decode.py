"""The torch model state, specialized, as a subject that needs no vLLM.

It runs in milliseconds, so the checks themselves are tested on it.
"""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from graphparity.conformance.decode_batches import StepLimits
from graphparity.conformance.subjects.recorders import make_recorder, recorder_kind
from graphparity.conformance.subjects.subject import (
    IndifferentOperand,
    MeteredRecorder,
    ReferenceSide,
    Subject,
    eager_twin,
)
from graphparity.conformance.subjects.torch_model_state import TorchModelState
from graphparity.fastpath.capture_ladder import CaptureLadder, Descriptor
from graphparity.fastpath.graph_key import GraphKey, keys_to_record
from graphparity.fastpath.seams import BUILD_ATTN_METADATA
from graphparity.fastpath.specialize import Specialization, specialize
from graphparity.reference.attention import AttentionGroup
from graphparity.reference.block_table import BlockTables
from graphparity.reference.compressor import CompressorMetadataBuilder
from graphparity.reference.input_batch import InputBatch, InputBuffers
from graphparity.reference.interface import CUDAGraphMode
from graphparity.reference.kv_cache_interface import (
    CircularBufferSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    SlidingWindowMLASpec,
)
from graphparity.reference.model_state import DecodeConfig, ReferenceModelState
from graphparity.reference.sliding_window import SlidingWindowMetadataBuilder

MAX_NUM_REQS, MAX_MODEL_LEN = 8, 64
MAX_NUM_REQS_OFF_LADDER = 12
"""No capture size is this many requests of 1 or 3 tokens: the last used holds 8."""
CAPACITY, WINDOW, BLOCK_SIZE = 4, 8, 8
CAPTURE_SIZES = (1, 2, 4, 8, 16, 24)
RING = CircularBufferSpec(block_size=CAPACITY)
SLIDING_WINDOW = SlidingWindowMLASpec(
    block_size=BLOCK_SIZE, sliding_window=WINDOW, bounded_replay=True
)


def dispatch(
    num_reqs: int,
    num_tokens: int,
    uniform_token_count: int | None,
    num_active_loras: int,
    *,
    max_num_reqs: int = MAX_NUM_REQS,
) -> Descriptor:
    """The smallest capture size, rounded up to whole requests, that holds the step;
    a step that none holds runs eagerly.
    """
    ladder = CaptureLadder(CAPTURE_SIZES, max_num_reqs)
    return ladder.dispatch(num_reqs, num_tokens, uniform_token_count, num_active_loras)


def torch_decode(name: str, query_len: int, recorder: str) -> Subject:
    """``specialize(TorchModelState)`` over buffers of its own."""
    return _recorded(name, query_len, recorder, MAX_NUM_REQS)


def off_ladder(name: str, query_len: int, recorder: str) -> Subject:
    """The same for more requests than the last FULL graph holds."""
    subject = _recorded(name, query_len, recorder, MAX_NUM_REQS_OFF_LADDER)
    return replace(subject, largest_rung=12 if query_len == 2 else 8)


def _recorded(name: str, query_len: int, recorder: str, max_num_reqs: int) -> Subject:
    device = recorder_kind(recorder).device
    config = _decode_config(query_len, max_num_reqs, device)
    buffers = InputBuffers(config.max_num_reqs, config.max_num_tokens, device)
    tables = _block_tables(config)
    made: list[MeteredRecorder] = []

    def recorder_of(state: TorchModelState) -> MeteredRecorder:
        memory = _memory(state, buffers, tables)
        made.append(make_recorder(recorder, memory))
        return made[-1]

    specialization = Specialization(
        full_mode=CUDAGraphMode.FULL,
        make_recorder=recorder_of,
        graph_keys=lambda state: _graph_keys(config),
        seam=replace(BUILD_ATTN_METADATA, idle_staging=TorchModelState.prepare_attn),
    )
    state = specialize(TorchModelState, specialization)(
        config, capacity=CAPACITY, window=WINDOW, block_size=BLOCK_SIZE
    )
    kv_cache_config = _kv_cache_config()
    state.initialize_kv_cache(kv_cache_config, tables)
    state.capture_inner_cudagraphs(buffers, tables, _attn_groups(), kv_cache_config)
    return _subject(name, state, made[0], buffers, tables)


def _decode_config(
    query_len: int, max_num_reqs: int, device: torch.device
) -> DecodeConfig:
    return DecodeConfig(
        max_num_reqs=max_num_reqs,
        max_num_tokens=max(32, max_num_reqs * query_len),
        max_model_len=MAX_MODEL_LEN,
        token_lookback_depth=0,
        device=device,
        decode_query_len=query_len,
    )


def _block_tables(config: DecodeConfig) -> BlockTables:
    return BlockTables(
        [CAPACITY, BLOCK_SIZE],
        config.max_num_reqs,
        config.max_num_tokens,
        [1, MAX_MODEL_LEN // BLOCK_SIZE],
        config.device,
        slot_mapping_enabled=[False, True],
    )


def _kv_cache_config() -> KVCacheConfig:
    groups = [
        KVCacheGroupSpec(["compressor"], RING),
        KVCacheGroupSpec(["sliding_window"], SLIDING_WINDOW),
    ]
    return KVCacheConfig(num_blocks=4000, kv_cache_tensors=[], kv_cache_groups=groups)


def _attn_groups() -> list[list[AttentionGroup]]:
    """The groups of the state, which owns their builders."""
    return [
        [AttentionGroup(object, group.layer_names, group.kv_cache_spec, index)]
        for index, group in enumerate(_kv_cache_config().kv_cache_groups)
    ]


def _graph_keys(config: DecodeConfig) -> tuple[GraphKey, ...]:
    return keys_to_record(
        partial(dispatch, max_num_reqs=config.max_num_reqs),
        max_num_reqs=config.max_num_reqs,
        query_lens=[config.decode_query_len],
        full_mode=CUDAGraphMode.FULL,
    )


def _tensors(owner: object, path: str) -> dict[str, torch.Tensor]:
    return {
        f"{path}.{name}": tensor
        for name, tensor in vars(owner).items()
        if isinstance(tensor, torch.Tensor)
    }


def _builder_memory(state: TorchModelState) -> dict[str, torch.Tensor]:
    compressor = _tensors(state.compressor, "builders.compressor")
    return compressor | _tensors(state.sliding_window, "builders.sliding_window")


def _memory(
    state: TorchModelState, buffers: InputBuffers, tables: BlockTables
) -> dict[str, torch.Tensor]:
    memory = _builder_memory(state) | _tensors(state, "state")
    memory |= _tensors(buffers, "input_buffers")
    memory["block_tables.slot_mappings"] = tables.slot_mappings
    for group, table in enumerate(tables.input_block_tables):
        memory[f"block_tables.input_block_tables[{group}]"] = table
    return memory


def _reference_side(config: DecodeConfig) -> ReferenceSide:
    ring = CompressorMetadataBuilder(RING)
    window = SlidingWindowMetadataBuilder(
        SLIDING_WINDOW, decode_query_len=config.decode_query_len
    )
    groups = [
        [AttentionGroup(object, ["compressor"], RING, 0, metadata_builders=[ring])],
        [
            AttentionGroup(
                object,
                ["sliding_window"],
                SLIDING_WINDOW,
                1,
                metadata_builders=[window],
            )
        ],
    ]
    state = ReferenceModelState(replace(config, device=torch.device("cpu")))
    return ReferenceSide(state, groups, _kv_cache_config(), CUDAGraphMode)


def _subject(
    name: str,
    state: Any,
    recorder: MeteredRecorder,
    buffers: InputBuffers,
    tables: BlockTables,
) -> Subject:
    config = state.config
    constants = {"window_range", "token_range", "no_replay_start"}
    token_ids = torch.zeros(
        (config.max_num_reqs, MAX_MODEL_LEN), dtype=torch.int32, device=config.device
    )
    return Subject(
        name=name,
        state=state,
        eager_state=eager_twin(state, TorchModelState),
        reference=_reference_side(config),
        recorder=recorder,
        record=lambda: state.capture_inner_cudagraphs(
            buffers, tables, _attn_groups(), _kv_cache_config()
        ),
        limits=StepLimits(
            query_len=config.decode_query_len,
            max_num_reqs=config.max_num_reqs,
            max_num_tokens=config.max_num_tokens,
            max_model_len=config.max_model_len,
            edges=(CAPACITY, WINDOW),
        ),
        graph_keys=_graph_keys(config),
        dispatch=partial(dispatch, max_num_reqs=config.max_num_reqs),
        cudagraph_modes=CUDAGraphMode,
        input_batch_cls=InputBatch,
        input_buffers=buffers,
        block_tables=tables,
        req_states=SimpleNamespace(all_token_ids=SimpleNamespace(gpu=token_ids)),
        attn_groups=_attn_groups(),
        kv_cache_config=_kv_cache_config(),
        memory=_memory(state, buffers, tables),
        builder_outputs=frozenset(
            path
            for path in _builder_memory(state)
            if path.rsplit(".", 1)[-1] not in constants
        ),
        also_written=frozenset({"state._replay_start"}),
        indifferent_operands=(
            IndifferentOperand(
                "aten.ge.Scalar_out",
                "subjects/torch_builders.py",
                "other",
                "a slot of 0 would lie in block 0, which no request holds",
            ),
        ),
    )
