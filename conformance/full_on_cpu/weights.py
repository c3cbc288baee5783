"""Weights of the model, drawn when they are loaded."""

# ruff: noqa: PLC0415, vLLM is imported once this process is prepared for it
from functools import cache
from typing import Any

import numpy as np
import torch

from graphparity.conformance.full_on_cpu.notes import NOTES


@cache
def draw_weights() -> None:
    """Let the dummy loader draw weights under which tokens depend on all of the
    context: attention outweighs the embedding of the last token. They are drawn when
    loaded, for vLLM packs weights for the CPU right afterwards.
    """
    from vllm.distributed import get_tensor_model_parallel_rank
    from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader

    def load_weights(self: Any, model: Any, model_config: Any) -> None:
        NOTES.models_loaded.append(model_config.model)
        # Every matrix is split among the ranks: no two of them hold the same.
        rng = np.random.RandomState(get_tensor_model_parallel_rank())
        for name, weight in sorted(model.named_parameters()):
            scale = next((it for part, it in _SCALES.items() if part in name), 0.35)
            is_matrix = weight.dim() > 1
            drawn = rng.normal(0, scale, tuple(weight.shape)) if is_matrix else 1.0
            weight.data.copy_(torch.as_tensor(drawn, dtype=torch.float32))

    DummyModelLoader.load_weights = load_weights


_SCALES = {"embed_tokens": 0.02, "qkv_proj": 0.25, "o_proj": 1.0, "down_proj": 0.02}
