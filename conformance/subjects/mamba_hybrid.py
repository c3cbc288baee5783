"""vLLM's ``MambaHybridModelState`` on a machine without a GPU, as subjects.

Real builders for SM90: one KV-cache group of full attention, and one or two of a
recurrent backend. Recorded is the state's call of ``build_attn_metadata``. With
speculation, a query length above 1, every step draws how many tokens its requests
accepted in the step before. There is no reference: the eager state is the oracle.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from graphparity.conformance.subjects.subject import Subject
from graphparity.conformance.subjects.vllm_state import (
    deployment_config,
    recorded_subject,
)
from graphparity.conformance.vllm_on_cpu.default_deployment import BLOCK_SIZE
from graphparity.conformance.vllm_on_cpu.hybrid_deployment import (
    RecurrentLayers,
    deploy_hybrid,
)
from graphparity.fastpath.partial_build import JudgeGroups
from graphparity.fastpath.seams import hybrid_prepare_attn

ATTENTION_GROUP = 0
"""The KV-cache group of the attention layer, before those of recurrent layers."""

_RECOVERABLE = (
    "graphparity.conformance.vllm_on_cpu.recoverable_mamba2:RecoverableBackend"
)


def mamba2(name: str, query_len: int, recorder: str) -> Subject:
    """Two groups of Mamba2 beside FlashAttention 3. Without speculation the second
    one's metadata is the first one's, with state indices of its own.
    """
    layers = RecurrentLayers("MAMBA2", "FLASH_ATTN", num_layers=2)
    return _subject(name, query_len, recorder, layers)


def gdn(name: str, query_len: int, recorder: str) -> Subject:
    """Gated delta nets beside FlashAttention 3. With speculation their builder copies a
    host mask, for which the prover refuses it: it is built eagerly in every step.
    """
    judge = None if query_len == 1 else _refuse_recurrent
    return _subject(
        name, query_len, recorder, RecurrentLayers("GDN_ATTN", "FLASH_ATTN"), judge
    )


def short_conv(name: str, query_len: int, recorder: str) -> Subject:
    """Short convolutions beside Triton attention."""
    return _subject(name, query_len, recorder, RecurrentLayers("SHORT_CONV"))


def linear_attn(name: str, query_len: int, recorder: str) -> Subject:
    """Linear attention beside Triton attention: a build without device work.

    Raises:
        ValueError: the query length is above 1, for which vLLM has no FULL graph of
            linear attention.
    """
    if query_len > 1:
        raise ValueError(
            f"subject {name!r} has no key: vLLM captures no FULL graph of linear "
            "attention with speculation; use query length 1."
        )
    return _subject(name, query_len, recorder, RecurrentLayers("LINEAR"))


def recoverssm(name: str, query_len: int, recorder: str) -> Subject:
    """Mamba2 whose steps ``recoverssm.record_step`` keeps, beside Triton attention."""
    layers = RecurrentLayers("MAMBA2", backend=_RECOVERABLE)
    subject = _subject(name, query_len, recorder, layers)
    from vllm.v1.worker.gpu.model_states.recoverssm import RecoverSSMState

    kept = RecoverSSMState()
    for state in (subject.state, subject.eager_state):
        vars(state)["recoverssm"] = kept

    def take_kept() -> Mapping[str, Any]:
        """As ``commit_step`` takes it."""
        step, kept._step = kept._step, None
        return {"recoverssm": step}

    return replace(subject, take_left_behind=take_kept)


def _subject(
    name: str,
    query_len: int,
    recorder: str,
    layers: RecurrentLayers,
    judge_groups: JudgeGroups | None = None,
) -> Subject:
    deployment = deploy_hybrid(deployment_config(query_len, recorder), layers)
    from vllm.v1.worker.gpu.model_states.mamba_hybrid import MambaHybridModelState

    subject = recorded_subject(
        name,
        recorder,
        deployment,
        MambaHybridModelState,
        hybrid_prepare_attn(MambaHybridModelState),
        edges=(BLOCK_SIZE,),
        judge_groups=judge_groups,
    )
    eager: Any = subject.eager_state
    return replace(
        subject,
        accepted_tokens=eager.num_accepted_tokens_gpu,
        staging_buffers=frozenset({"states[0]._num_accepted_tokens"}),
    )


def _refuse_recurrent(state: Any, attn_groups: list[list[Any]]) -> Mapping[int, bool]:
    """What the prover says, as ``test_vllm_builders`` shows."""
    return {index: index == ATTENTION_GROUP for index in range(len(attn_groups))}
