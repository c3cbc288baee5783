"""LoRA adapters of the model, and the padding that vLLM's CPU LoRA does not know."""

import json
from collections.abc import Iterator
from functools import cache, wraps
from pathlib import Path
from typing import Any

import torch

from graphparity.conformance.full_on_cpu.scenarios import MODEL

RANK = 8
SCALE = 0.3
"""Of an adapter's weights: large enough for every request's tokens to change."""


def lora_requests(folder: Path, num_adapters: int) -> list[Any]:
    """None, for no adapter, and vLLM's requests for each; writes them to ``folder``."""
    from safetensors.torch import save_file  # noqa: PLC0415
    from vllm.lora.request import LoRARequest  # noqa: PLC0415

    requests: list[Any] = [None]
    for number in range(1, num_adapters + 1):
        path = folder / f"adapter-{number}"
        path.mkdir()
        save_file(dict(_weights(number)), path / "adapter_model.safetensors")
        config = {"r": RANK, "lora_alpha": RANK, "target_modules": [*_out_features()]}
        (path / "adapter_config.json").write_text(json.dumps(config), "utf-8")
        requests.append(LoRARequest(f"adapter {number}", number, str(path)))
    return requests


def _out_features() -> dict[str, int]:
    head_dim = MODEL["head_dim"]
    q, kv = MODEL["num_attention_heads"], MODEL["num_key_value_heads"]
    return {"q_proj": q * head_dim, "k_proj": kv * head_dim, "v_proj": kv * head_dim}


def _weights(seed: int) -> Iterator[tuple[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    for layer in range(MODEL["num_hidden_layers"]):
        for name, out_features in _out_features().items():
            prefix = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            for part, shape in {
                "lora_A": (RANK, MODEL["hidden_size"]),
                "lora_B": (out_features, RANK),
            }.items():
                drawn = torch.randn(shape, generator=generator) * SCALE
                yield f"{prefix}.{part}.weight", drawn


@cache
def leave_padding_without_lora() -> None:
    """Let CPU LoRA take a FULL step's padded tokens, and leave them as they are.

    vLLM's kernels for GPUs do so; its CPU operators, which no FULL step reaches
    otherwise, ask for exactly the tokens that the requests have.
    """
    from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU  # noqa: PLC0415

    for name in ("add_lora_embedding", "add_lora_linear"):
        setattr(PunicaWrapperCPU, name, _unpadded(getattr(PunicaWrapperCPU, name)))


def _unpadded(add_lora: Any) -> Any:
    @wraps(add_lora)
    def unpadded(self: Any, y: Any, x: Any, *args: Any, **kwargs: Any) -> None:
        num_tokens = self.token_lora_indices.shape[0]
        add_lora(self, y[:num_tokens], x[:num_tokens], *args, **kwargs)

    return unpadded
