"""A process into which vLLM loads its installed plug-ins by itself.

Nothing of the plug-in is imported here, and ``install`` is not called: what a front
end does, making arguments and then a configuration, is all that happens. The program
prints what became of it as JSON; the environment says which plug-ins vLLM may load:
``VLLM_PLUGINS=graphparity python -m graphparity.conformance.full_on_cpu.entry_point``.
"""

# ruff: noqa: PLC0415, vLLM is imported once this process is prepared for it
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from graphparity.conformance.full_on_cpu.scenarios import MODEL

PLUGIN = "graphparity.fastpath.vllm_plugin"
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "absent": {},
    "off": {"graphparity": {"mode": "off"}},
    "replay": {"graphparity": {"mode": "replay"}},
    "misspelt": {"graphparity": {"mode": "fast"}},
}


def main() -> None:
    """Load, and ask for a configuration and a model state class of each kind."""
    os.environ |= {
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "TRITON_INTERPRET": "1",
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_USE_V2_MODEL_RUNNER": "1",
    }
    vllm_s = _functions()
    outcome: dict[str, Any] = {"imported_before": PLUGIN in sys.modules}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(MODEL), "utf-8")
        outcome["answers"] = {
            name: _answer(folder, additional_config, vllm_s["resolve_model_state_cls"])
            for name, additional_config in CONFIGURATIONS.items()
        }
    wrapping = _functions()
    outcome["imported_after"] = PLUGIN in sys.modules
    outcome["wrapped"] = [it for it in vllm_s if wrapping[it] is not vllm_s[it]]
    _load_again()
    outcome["wrapped_again"] = [
        it for it, function in _functions().items() if function is not wrapping[it]
    ]
    print(json.dumps(outcome))


def _functions() -> dict[str, Any]:
    """The functions of vLLM that the plug-in wraps, as they are now."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.worker.gpu import model_states
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    return {
        "create_engine_config": EngineArgs.create_engine_config,
        "resolve_model_state_cls": model_states.resolve_model_state_cls,
        "capture_model": GPUModelRunner.capture_model,
    }


def _answer(folder: str, additional_config: dict[str, Any], vllm_s: Any) -> Any:
    """The model state class, and vLLM's own answer; or the error of the front end."""
    import torch
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.worker.gpu import model_states

    args = EngineArgs(
        model=folder,
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=128,
        additional_config=additional_config,
    )
    try:
        vllm_config = args.create_engine_config()
    except ValueError as error:
        return f"{type(error).__name__}: {error}"
    model = torch.nn.Module()
    return [
        resolve(vllm_config, model).__qualname__
        for resolve in (model_states.resolve_model_state_cls, vllm_s)
    ]


def _load_again() -> None:
    """As vLLM in a process that loads its plug-ins twice."""
    from vllm import plugins

    plugins.plugins_loaded = False
    plugins.load_general_plugins()


if __name__ == "__main__":
    main()
