"""Gives vLLM's CPU platform FULL decode graphs: forwards stand in their places."""

# ruff: noqa: PLC0415, vLLM is imported once this process is prepared for it
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from graphparity.conformance.full_on_cpu.adapters import leave_padding_without_lora
from graphparity.conformance.full_on_cpu.attention import schedule_in_the_forward
from graphparity.conformance.full_on_cpu.notes import NOTES
from graphparity.conformance.full_on_cpu.scenarios import CAPTURE_NUM_REQS


@cache
def emulate_full_graphs() -> None:
    """Give the CPU platform of this process FULL decode graphs; idempotent."""
    _keep_mode_and_sizes()
    _capture_forwards()
    _work_as_the_gpu_worker()
    schedule_in_the_forward()
    leave_padding_without_lora()


class CapturedForward:
    """What stands in a FULL graph's place: the forward, run again.

    Args:
        forward: runs the model under the capture's metadata.
        desc: vLLM's description of the graph.
    """

    def __init__(self, forward: Callable[[], None], desc: Any) -> None:
        self._forward = forward
        self._noted_as = desc.uniform_token_count, desc.num_active_loras

    def replay(self) -> None:
        """As a CUDA graph."""
        NOTES.full_steps[self._noted_as] += NOTES.is_serving
        self._forward()


def _keep_mode_and_sizes() -> None:
    from vllm.config import CUDAGraphMode
    from vllm.platforms.cpu import CpuPlatform

    check = CpuPlatform.check_and_update_config

    def keeping(cls: Any, vllm_config: Any) -> None:
        compilation = vllm_config.compilation_config
        check(vllm_config)
        query_len = 1 + vllm_config.num_speculative_tokens
        sizes = [num_reqs * query_len for num_reqs in CAPTURE_NUM_REQS]
        compilation.cudagraph_mode = CUDAGraphMode.FULL_DECODE_ONLY
        compilation.cudagraph_capture_sizes = sizes
        compilation.max_cudagraph_capture_size = max(sizes)
        # It launches sampling kernels that the interpreter cannot run.
        vllm_config.kernel_config.enable_jit_warmup = False

    CpuPlatform.check_and_update_config = classmethod(keeping)
    CpuPlatform.support_static_graph_mode = classmethod(lambda cls: True)
    CpuPlatform.graph_pool_handle = lambda self: (0, len(NOTES.captures))


def _capture_forwards() -> None:
    """As ``CudaGraphManager.capture``: prepare, warm up, prepare again, capture."""
    from vllm.config import CUDAGraphMode
    from vllm.v1.worker.gpu import cudagraph_utils

    def capture(self: Any, create_forward_fn: Any, progress_bar_desc: str = "") -> None:
        descs = self._capture_descs.get(CUDAGraphMode.FULL, [])
        for desc in descs[: self._max_full_descs_to_capture]:
            create_forward_fn(desc, warmup=True)(CUDAGraphMode.NONE)
            forward = create_forward_fn(desc, warmup=False)
            forward(CUDAGraphMode.NONE)
            again = partial(forward, CUDAGraphMode.NONE)
            self.graphs[desc] = CapturedForward(again, desc)
            if self._capture_mem_samples is not None:
                self._capture_mem_samples.append(0)
        self._graphs_captured = True

    cudagraph_utils.CudaGraphManager.capture = capture


def _work_as_the_gpu_worker() -> None:
    """Profile graph memory, run real steps to warm up, and then capture."""
    from vllm.v1.worker.cpu_worker import CPUWorker
    from vllm.v1.worker.gpu.warmup import run_mixed_prefill_decode_warmup
    from vllm.v1.worker.workspace import init_workspace_manager

    determine = CPUWorker.determine_available_memory
    warm_up = CPUWorker.compile_or_warm_up_model

    def determine_available_memory(self: Any) -> int:
        init_workspace_manager(self.device, 1)
        self.model_runner.profile_cudagraph_memory()
        _note_capture(self, is_profile=True)
        available: int = determine(self)
        return available

    def compile_or_warm_up_model(self: Any) -> Any:
        times = warm_up(self)
        run_mixed_prefill_decode_warmup(
            self.model_runner, self.execute_model, self.sample_tokens, num_tokens=8
        )
        self.model_runner.capture_model()
        _note_capture(self, is_profile=False)
        return times

    CPUWorker.determine_available_memory = determine_available_memory
    CPUWorker.compile_or_warm_up_model = compile_or_warm_up_model


def _note_capture(worker: Any, *, is_profile: bool) -> None:
    graphs = getattr(worker.model_runner.model_state, "graphs", None)
    keys = None if graphs is None else sorted(map(list, graphs.recordings))
    alive = None if keys is None else len(keys)
    NOTES.captures.append({"is_profile": is_profile, "recordings_after": alive})
    NOTES.keys = keys or []
