"""vLLM's ``DefaultModelState`` on a machine without a GPU, as subjects.

Real FlashAttention and Triton attention builders for SM90, over one KV-cache group
of full attention, one of sliding-window attention, or one of each. All of a step's
``prepare_attn`` is recorded. There is no reference: the eager state is the oracle.
"""

from dataclasses import replace

from graphparity.conformance.subjects.subject import Subject
from graphparity.conformance.subjects.vllm_state import (
    deployment_config,
    recorded_subject,
)
from graphparity.conformance.vllm_on_cpu.deepseek_v41 import DeploymentConfig
from graphparity.conformance.vllm_on_cpu.default_deployment import (
    BLOCK_SIZE,
    AttentionLayers,
    deploy_default,
)
from graphparity.fastpath.seams import whole_prepare_attn

WINDOW = 64
FULL, LOCAL, MIXED = (None, None), (WINDOW, WINDOW), (None, WINDOW)

EDGES = (BLOCK_SIZE, WINDOW)
"""Block size and window of the deployment, in tokens."""


def flash_attn(name: str, query_len: int, recorder: str) -> Subject:
    """FlashAttention 3, one group of full attention."""
    config = deployment_config(query_len, recorder)
    return _subject(name, config, recorder, AttentionLayers("FLASH_ATTN", FULL))


def flash_attn_off_ladder(name: str, query_len: int, recorder: str) -> Subject:
    """The same for 12 requests, with capture sizes that an operator set: graphs of 1 or
    3 tokens a request hold 8 at most.
    """
    config = replace(
        deployment_config(query_len, recorder),
        max_num_seqs=12,
        cudagraph_capture_sizes=[1, 2, 4, 8, 16, 24],
    )
    subject = _subject(name, config, recorder, AttentionLayers("FLASH_ATTN", FULL))
    return replace(subject, largest_rung=12 if query_len == 2 else 8)


def flash_attn_window(name: str, query_len: int, recorder: str) -> Subject:
    """FlashAttention 3, one group of sliding-window attention."""
    config = deployment_config(query_len, recorder)
    return _subject(name, config, recorder, AttentionLayers("FLASH_ATTN", LOCAL))


def flash_attn_two_groups(name: str, query_len: int, recorder: str) -> Subject:
    """FlashAttention 3, a group of full and one of sliding-window attention: its
    builders give up their ahead-of-time schedule there.
    """
    config = deployment_config(query_len, recorder)
    return _subject(name, config, recorder, AttentionLayers("FLASH_ATTN", MIXED))


def triton_attn(name: str, query_len: int, recorder: str) -> Subject:
    """Triton attention, one group of full attention: a build without device work."""
    config = deployment_config(query_len, recorder)
    return _subject(name, config, recorder, AttentionLayers("TRITON_ATTN", FULL))


def triton_attn_two_groups(name: str, query_len: int, recorder: str) -> Subject:
    """Triton attention, a group of full and one of sliding-window attention."""
    config = deployment_config(query_len, recorder)
    return _subject(name, config, recorder, AttentionLayers("TRITON_ATTN", MIXED))


def _subject(
    name: str, config: DeploymentConfig, recorder: str, layers: AttentionLayers
) -> Subject:
    deployment = deploy_default(config, layers)
    from vllm.v1.worker.gpu.model_states.default import DefaultModelState

    return recorded_subject(
        name,
        recorder,
        deployment,
        DefaultModelState,
        whole_prepare_attn(DefaultModelState),
        edges=EDGES,
    )
