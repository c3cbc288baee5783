"""vLLM's DeepSeek-V4.1 decode on a machine without a GPU, as subjects.

``blackwell`` and ``hopper`` are ``specialize(DeepseekV41ModelState)`` over that
GPU's four metadata builders; ``vllm_specialized_decode`` is vLLM's own
``DeepseekV41SpecializedDecodeModelState``, unmodified but for the recorder. vLLM's
classes are the real ones, on CPU tensors with interpreted kernels.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from graphparity.conformance.decode_batches import StepLimits
from graphparity.conformance.subjects.deepseek_v41_reference import reference_side
from graphparity.conformance.subjects.recorders import make_recorder, recorder_kind
from graphparity.conformance.subjects.subject import (
    DeadNode,
    IndifferentOperand,
    MeteredRecorder,
    Subject,
    eager_twin,
)
from graphparity.conformance.vllm_on_cpu.deepseek_v41 import (
    Deployment,
    DeploymentConfig,
    builder_memory,
    deploy,
    device_memory,
    graph_keys,
    model_state,
    rotating_memory,
)
from graphparity.conformance.vllm_on_cpu.platform import Flavour
from graphparity.conformance.vllm_on_cpu.stand_ins import STAND_IN_FIELDS
from graphparity.fastpath.seams import replay_start_staging
from graphparity.fastpath.specialize import Specialization, specialize
from graphparity.fastpath.vllm_plugin.tied_groups import tied_groups

BUILDER_CONSTANTS = frozenset(
    {
        "arange_buffer",
        "offsets_buffer",
        "dcp_rank_tensor",
        "zero_row_ks",
        "no_replay_start",
    }
)
"""Buffers that a builder fills once, when it is made, and only reads afterwards."""

BRANCH_MAPS = frozenset(
    {
        "builders.sliding_window.token_to_req_indices",
        "builders.sparse_mla.req_id_per_token_buffer",
    }
)
"""The maps that vLLM's forked build makes in every branch; the serial build makes
the compressor's alone, which the later groups share."""

ALSO_WRITTEN = frozenset(
    {"block_tables.input_block_tables[3]", "states[0]._replay_start"}
)
"""The sparse MLA builder clamps its block table in place; the state uploads the
replay starts."""

DEAD_WITHOUT_PADDING = (
    DeadNode(
        "aten.clamp_.default",
        "attention/backends/mla/indexer.py",
        "it lifts the negative lengths of empty padded requests to 0",
    ),
)

INDIFFERENT_OPERANDS = (
    IndifferentOperand(
        "aten.ge.Scalar_out",
        "attention/backends/mla/sparse_swa.py",
        "other",
        "a slot of 0 would lie in block 0, which no request holds",
    ),
    IndifferentOperand(
        "triton:kernel",
        "model_executor/warmup/jit_warmup_triton_helper.py",
        "cp_interleave",
        "one rank of context parallelism holds every position, however interleaved",
    ),
)

EDGES = (8, 64, 128)
"""Ring capacity, block sizes and window of the deployment, in tokens."""


def blackwell(name: str, query_len: int, recorder: str) -> Subject:
    """``specialize(DeepseekV41ModelState)`` over the builders for SM100."""
    return _specialized(name, _config(Flavour.BLACKWELL, query_len, recorder), recorder)


def hopper(name: str, query_len: int, recorder: str) -> Subject:
    """``specialize(DeepseekV41ModelState)`` over the builders for SM90."""
    return _specialized(name, _config(Flavour.HOPPER, query_len, recorder), recorder)


def hopper_no_bounded_replay(name: str, query_len: int, recorder: str) -> Subject:
    """As ``hopper``, served without ``swa_bounded_replay``: no step uploads replay
    starts.
    """
    config = _config(Flavour.HOPPER, query_len, recorder)
    return _specialized(name, replace(config, bounded_replay=False), recorder)


def vllm_specialized_decode(name: str, query_len: int, recorder: str) -> Subject:
    """The state of vLLM's own ``specialized_decode``, over the builders for SM100,
    the only ones that it takes for recordable.
    """
    deployment = deploy(_config(Flavour.BLACKWELL, query_len, recorder))
    from vllm.models.deepseek_v41.nvidia.specialized_decode.runtime.model_state import (
        DeepseekV41SpecializedDecodeModelState,
    )

    from graphparity.conformance.vllm_on_cpu.vllm_recording import recording_with

    state = model_state(deployment, DeepseekV41SpecializedDecodeModelState)
    metered = _recorder(recorder, deployment, state)

    def record() -> None:
        with recording_with(metered):
            _record(deployment, state)

    record()
    return _subject(name, deployment, state, metered, record, branch_maps=BRANCH_MAPS)


def _config(flavour: Flavour, query_len: int, recorder: str) -> DeploymentConfig:
    """A deployment as large as the recorder's machine is fit for."""
    kind = recorder_kind(recorder)
    return DeploymentConfig(
        flavour,
        query_len,
        kind.device,
        max_num_seqs=kind.max_num_seqs,
        max_num_batched_tokens=8 * kind.max_num_seqs,
    )


def _specialized(name: str, config: DeploymentConfig, recorder: str) -> Subject:
    deployment = deploy(config)
    from vllm.config import CUDAGraphMode
    from vllm.models.deepseek_v41.nvidia.model_state import DeepseekV41ModelState

    made: list[MeteredRecorder] = []

    def recorder_of(state: Any) -> MeteredRecorder:
        made.append(_recorder(recorder, deployment, state))
        return made[-1]

    specialization = Specialization(
        full_mode=CUDAGraphMode.FULL,
        make_recorder=recorder_of,
        graph_keys=lambda state: graph_keys(deployment),
        seam=replay_start_staging(DeepseekV41ModelState),
        tied_groups=lambda state, groups: tied_groups(groups, config.device),
    )
    state_cls = specialize(DeepseekV41ModelState, specialization)
    state = model_state(deployment, state_cls)

    def record() -> None:
        _record(deployment, state)

    record()
    return _subject(name, deployment, state, made[0], record)


def _recorder(name: str, deployment: Deployment, state: Any) -> MeteredRecorder:
    return make_recorder(
        name,
        device_memory(deployment, state),
        rotating_memory(deployment, state).values(),
    )


def _record(deployment: Deployment, state: Any) -> None:
    state.capture_inner_cudagraphs(
        deployment.input_buffers,
        deployment.block_tables,
        deployment.attn_groups,
        deployment.kv_cache_config,
    )


def _subject(
    name: str,
    deployment: Deployment,
    state: Any,
    recorder: MeteredRecorder,
    record: Callable[[], None],
    branch_maps: frozenset[str] = frozenset(),
) -> Subject:
    from vllm.config import CUDAGraphMode
    from vllm.models.deepseek_v41.nvidia.model_state import DeepseekV41ModelState
    from vllm.v1.worker.gpu.input_batch import InputBatch

    config = deployment.config
    return Subject(
        name=name,
        state=state,
        eager_state=eager_twin(state, DeepseekV41ModelState),
        reference=reference_side(deployment),
        recorder=recorder,
        record=record,
        limits=StepLimits(
            query_len=config.query_len,
            max_num_reqs=config.max_num_seqs,
            max_num_tokens=config.max_num_batched_tokens,
            max_model_len=config.max_model_len,
            edges=EDGES,
        ),
        graph_keys=graph_keys(deployment),
        dispatch=deployment.cudagraph_manager.dispatch,
        cudagraph_modes=CUDAGraphMode,
        input_batch_cls=InputBatch,
        input_buffers=deployment.input_buffers,
        block_tables=deployment.block_tables,
        req_states=deployment.req_states,
        attn_groups=deployment.attn_groups,
        kv_cache_config=deployment.kv_cache_config,
        memory=device_memory(deployment, state),
        builder_outputs=frozenset(_builder_outputs(deployment)),
        also_written=ALSO_WRITTEN,
        branch_maps=branch_maps,
        dead_without_padding=DEAD_WITHOUT_PADDING,
        indifferent_operands=INDIFFERENT_OPERANDS,
        stand_in_fields=frozenset(
            STAND_IN_FIELDS if config.device.type == "cpu" else ()
        ),
    )


def _builder_outputs(deployment: Deployment) -> Iterator[str]:
    for path in builder_memory(deployment):
        if path.rsplit(".", 1)[-1] not in BUILDER_CONSTANTS:
            yield path
