"""Mamba2's backend, whose metadata also is what RecoverSSM commits a step by.

In vLLM 0.33.0 Kimi K3's is the only such builder. It needs kernels of its own, and with
speculation it copies a host mask, for which it could not be recorded. What
``record_step`` keeps of a step is any metadata of this kind. Imports vLLM: only after
`platform.install()`.
"""

from dataclasses import dataclass

import torch
from vllm.v1.attention.backends.mamba2_attn import (
    Mamba2AttentionBackend,
    Mamba2AttentionMetadata,
    Mamba2AttentionMetadataBuilder,
)
from vllm.v1.attention.backends.recoverssm_metadata import RecoverSSMMetadata


@dataclass
class RecoverableMetadata(Mamba2AttentionMetadata, RecoverSSMMetadata):  # type: ignore[misc] # vLLM is untyped here
    """Mamba2's metadata, kept until the step's tokens were sampled."""

    def commit_recoverssm_state(self, num_accepted_tokens: torch.Tensor) -> None:
        """Commit nothing: there is no forward pass whose state could be restored."""


class RecoverableBuilder(Mamba2AttentionMetadataBuilder):  # type: ignore[misc] # vLLM is untyped here
    """Mamba2's own build, of the other class of metadata."""

    metadata_cls = RecoverableMetadata


class RecoverableBackend(Mamba2AttentionBackend):  # type: ignore[misc] # vLLM is untyped here
    """Mamba2's backend with that builder."""

    @staticmethod
    def get_builder_cls() -> type[RecoverableBuilder]:
        """The builder of this backend's groups."""
        return RecoverableBuilder
