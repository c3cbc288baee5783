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
            drawn = (
                rng.normal(0, scale, tuple(weight.shape)) if is_matrix else np.ones(1)
            )
            for part, begin in _TARGET_S_PART.items():
                if name.endswith(part):
                    size = weight.shape[0]
                    drawn[:, begin * size : (begin + 1) * size] += np.eye(size) * 16
            weight.data.copy_(torch.as_tensor(drawn, dtype=torch.float32))

    DummyModelLoader.load_weights = load_weights


_TARGET_S_PART = {"fc.weight": 1, "input_proj.weight": 0}
"""Of a draft model's input: the half that holds the target's hidden states, which it
mostly passes on; so drafts are often the target's last token, and some are accepted."""
_SCALES = {"embed_tokens": 0.02, "qkv_proj": 0.25, "o_proj": 1.0, "down_proj": 0.02}
