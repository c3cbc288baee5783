"""vLLM's ``DefaultModelState`` on a machine without a GPU, as subjects.

Real FlashAttention and Triton attention builders for SM90, over one KV-cache group
of full attention, one of sliding-window attention, or one of each. All of a step's
``prepare_attn`` is recorded. There is no reference: the eager state is the oracle.
"""

from typing import Any

from graphparity.conformance.decode_batches import StepLimits
from graphparity.conformance.subjects.recorders import make_recorder, recorder_kind
from graphparity.conformance.subjects.subject import (
    MeteredRecorder,
    Subject,
    eager_twin,
)
from graphparity.conformance.vllm_on_cpu.deepseek_v41 import (
    Deployment,
    DeploymentConfig,
    builder_memory,
    device_memory,
    graph_keys,
    model_state,
    rotating_memory,
)
from graphparity.conformance.vllm_on_cpu.default_deployment import (
    BLOCK_SIZE,
    AttentionLayers,
    deploy_default,
)
from graphparity.conformance.vllm_on_cpu.platform import Flavour
from graphparity.fastpath.seams import whole_prepare_attn
from graphparity.fastpath.specialize import Specialization, specialize

WINDOW = 64
FULL, LOCAL, MIXED = (None, None), (WINDOW, WINDOW), (None, WINDOW)

EDGES = (BLOCK_SIZE, WINDOW)
"""Block size and window of the deployment, in tokens."""

KERNEL_SCRATCH = frozenset(
    {"softmax_segm_output", "softmax_segm_max", "softmax_segm_expsum"}
)
"""Buffers of builders that only the forward's kernels write."""


def flash_attn(name: str, query_len: int, recorder: str) -> Subject:
    """FlashAttention 3, one group of full attention."""
    return _subject(name, query_len, recorder, AttentionLayers("FLASH_ATTN", FULL))


def flash_attn_window(name: str, query_len: int, recorder: str) -> Subject:
    """FlashAttention 3, one group of sliding-window attention."""
    return _subject(name, query_len, recorder, AttentionLayers("FLASH_ATTN", LOCAL))


def flash_attn_two_groups(name: str, query_len: int, recorder: str) -> Subject:
    """FlashAttention 3, a group of full and one of sliding-window attention: its
    builders give up their ahead-of-time schedule there.
    """
    return _subject(name, query_len, recorder, AttentionLayers("FLASH_ATTN", MIXED))


def triton_attn(name: str, query_len: int, recorder: str) -> Subject:
    """Triton attention, one group of full attention: a build without device work."""
    return _subject(name, query_len, recorder, AttentionLayers("TRITON_ATTN", FULL))


def triton_attn_two_groups(name: str, query_len: int, recorder: str) -> Subject:
    """Triton attention, a group of full and one of sliding-window attention."""
    return _subject(name, query_len, recorder, AttentionLayers("TRITON_ATTN", MIXED))


def _subject(
    name: str, query_len: int, recorder: str, layers: AttentionLayers
) -> Subject:
    kind = recorder_kind(recorder)
    config = DeploymentConfig(
        Flavour.HOPPER,
        query_len,
        kind.device,
        max_num_seqs=kind.max_num_seqs,
        max_num_batched_tokens=8 * kind.max_num_seqs,
        bounded_replay=False,
    )
    deployment = deploy_default(config, layers)
    from vllm.config import CUDAGraphMode
    from vllm.v1.worker.gpu.input_batch import InputBatch
    from vllm.v1.worker.gpu.model_states.default import DefaultModelState

    made: list[MeteredRecorder] = []
    keys = graph_keys(deployment)

    def recorder_of(state: Any) -> MeteredRecorder:
        made.append(
            make_recorder(
                recorder,
                device_memory(deployment, state),
                rotating_memory(deployment, state).values(),
            )
        )
        return made[-1]

    specialization = Specialization(
        full_mode=CUDAGraphMode.FULL,
        make_recorder=recorder_of,
        graph_keys=lambda state: keys,
        seam=whole_prepare_attn(DefaultModelState),
    )
    state = model_state(deployment, specialize(DefaultModelState, specialization))

    def record() -> None:
        state.capture_inner_cudagraphs(
            deployment.input_buffers,
            deployment.block_tables,
            deployment.attn_groups,
            deployment.kv_cache_config,
        )

    record()
    return Subject(
        name=name,
        state=state,
        eager_state=eager_twin(state, DefaultModelState),
        reference=None,
        recorder=made[0],
        record=record,
        limits=StepLimits(
            query_len=config.query_len,
            max_num_reqs=config.max_num_seqs,
            max_num_tokens=config.max_num_batched_tokens,
            max_model_len=config.max_model_len,
            edges=EDGES,
        ),
        graph_keys=keys,
        dispatch=deployment.cudagraph_manager.dispatch,
        cudagraph_modes=CUDAGraphMode,
        input_batch_cls=InputBatch,
        input_buffers=deployment.input_buffers,
        block_tables=deployment.block_tables,
        req_states=deployment.req_states,
        attn_groups=deployment.attn_groups,
        kv_cache_config=deployment.kv_cache_config,
        memory=device_memory(deployment, state),
        builder_outputs=_builder_outputs(deployment),
    )


def _builder_outputs(deployment: Deployment) -> frozenset[str]:
    return frozenset(
        path
        for path in builder_memory(deployment)
        if path.rsplit(".", 1)[-1] not in KERNEL_SCRATCH
    )
