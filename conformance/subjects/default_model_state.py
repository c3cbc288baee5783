"""vLLM's ``DefaultModelState`` on a machine without a GPU, as subjects.

Real FlashAttention and Triton attention builders for SM90, over one KV-cache group
of full attention, one of sliding-window attention, or one of each. All of a step's
``prepare_attn`` is recorded. There is no reference: the eager state is the oracle.
"""

from graphparity.conformance.subjects.subject import Subject
from graphparity.conformance.subjects.vllm_state import (
    deployment_config,
    recorded_subject,
)
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
    deployment = deploy_default(deployment_config(query_len, recorder), layers)
    from vllm.v1.worker.gpu.model_states.default import DefaultModelState

    return recorded_subject(
        name,
        recorder,
        deployment,
        DefaultModelState,
        whole_prepare_attn(DefaultModelState),
        edges=EDGES,
    )
