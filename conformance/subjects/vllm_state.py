"""A subject of a deployment of vLLM's, recorded by a seam.

There is no reference: the eager state is the oracle.
"""

from typing import Any

from graphparity.conformance.decode_batches import StepLimits
from graphparity.conformance.subjects.recorders import make_recorder, recorder_kind
from graphparity.conformance.subjects.subject import (
    IndifferentOperand,
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
from graphparity.conformance.vllm_on_cpu.platform import Flavour
from graphparity.fastpath.partial_build import JudgeGroups
from graphparity.fastpath.seams import Seam
from graphparity.fastpath.specialize import Specialization, specialize
from graphparity.fastpath.vllm_plugin.tied_groups import tied_groups

KERNEL_SCRATCH = frozenset(
    {"softmax_segm_output", "softmax_segm_max", "softmax_segm_expsum"}
)
"""Buffers of builders that only the forward's kernels write."""


_SCHEDULE = "_vllm_fa3_C.get_scheduler_metadata.default"
INDIFFERENT_OPERANDS = (
    *(
        IndifferentOperand(_SCHEDULE, "", name, "the stand-in does not follow it")
        for name in (
            "headdim",
            "headdim_v",
            "page_size",
            "max_seqlen_k_new",
            "causal",
            "window_size_right",
            "has_softcap",
        )
    ),
    IndifferentOperand(
        _SCHEDULE, "", "num_splits", "no split and one split are the same"
    ),
    IndifferentOperand(
        _SCHEDULE,
        "",
        "max_seqlen_q",
        "without a window the stand-in does not follow it",
    ),
    IndifferentOperand(
        _SCHEDULE,
        "",
        "max_seqlen_k",
        "a bound: all that counts is whether the window is shorter",
    ),
    IndifferentOperand(
        "aten.copy_.default",
        "attention/backends/mamba_attn.py",
        "non_blocking",
        "it says when the host goes on, not what is copied",
    ),
)
"""Operands of the stand-in for FlashAttention 3's schedule, whose values are not the
kernel's, and of recurrent builders."""


def deployment_config(query_len: int, recorder: str) -> DeploymentConfig:
    """A small engine for Hopper, on the device of the recorder."""
    kind = recorder_kind(recorder)
    return DeploymentConfig(
        Flavour.HOPPER,
        query_len,
        kind.device,
        max_num_seqs=kind.max_num_seqs,
        max_num_batched_tokens=8 * kind.max_num_seqs,
        bounded_replay=False,
    )


def recorded_subject(
    name: str,
    recorder: str,
    deployment: Deployment,
    base: type[Any],
    seam: Seam,
    *,
    edges: tuple[int, ...],
    judge_groups: JudgeGroups | None = None,
) -> Subject:
    """``specialize(base)`` over the deployment, recorded, with its eager twin."""
    from vllm.config import CUDAGraphMode
    from vllm.v1.worker.gpu.input_batch import InputBatch

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
        seam=seam,
        judge_groups=judge_groups,
        tied_groups=lambda state, groups: tied_groups(groups, deployment.device),
    )
    state = model_state(deployment, specialize(base, specialization))

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
        eager_state=eager_twin(state, base),
        reference=None,
        recorder=made[0],
        record=record,
        limits=_limits(deployment.config, edges),
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
        indifferent_operands=INDIFFERENT_OPERANDS,
    )


def _limits(config: DeploymentConfig, edges: tuple[int, ...]) -> StepLimits:
    return StepLimits(
        query_len=config.query_len,
        max_num_reqs=config.max_num_seqs,
        max_num_tokens=config.max_num_batched_tokens,
        max_model_len=config.max_model_len,
        edges=edges,
    )


def _builder_outputs(deployment: Deployment) -> frozenset[str]:
    return frozenset(
        path
        for path in builder_memory(deployment)
        if path.rsplit(".", 1)[-1] not in KERNEL_SCRATCH
    )
