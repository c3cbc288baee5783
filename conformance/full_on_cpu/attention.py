"""The builders of vLLM's CPU attention: one recordable, three not; and its schedule."""

# ruff: noqa: PLC0415, vLLM is imported once this process is prepared for it
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from graphparity.conformance.full_on_cpu.notes import NOTES


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


def cold_kernel_cpu_builder() -> type[Any]:
    """A builder that launches a kernel in captures alone."""
    import triton

    from graphparity.conformance.full_on_cpu.copy_kernel import copy_kernel
    from graphparity.fastpath.recorders import EmulatedRecorder

    class ColdKernelCpuBuilder(recordable_cpu_builder()):  # type: ignore[misc]
        """Copies the block table in one launch, where launches are saved."""

        def copy_block_table(self, own: Any, table: Any) -> None:
            """Copy, by a kernel that no warm-up launched."""
            if EmulatedRecorder._session is None:
                own.copy_(table)
                return
            width = own.shape[1]
            block = triton.next_power_of_2(width)
            copy_kernel[(own.shape[0],)](table, own, width, BLOCK=block)

    return ColdKernelCpuBuilder


_BUILDERS: dict[str, Callable[[], type[Any]]] = {
    "recordable": recordable_cpu_builder,
    "stale": stale_cpu_builder,
    "host_read": host_read_cpu_builder,
    "cold_kernel": cold_kernel_cpu_builder,
}


@contextmanager
def built_by(builder: str, rank: int | None = None) -> Iterator[None]:
    """Let vLLM's CPU backend build by another builder; "" leaves it its own.

    Args:
        builder: its name.
        rank: which builds by it, while the others build by "recordable"; None for all.
    """
    from vllm.distributed import get_tensor_model_parallel_rank
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    if not builder:
        yield
        return
    vllm_s = CPUAttentionBackend.get_builder_cls
    builder_cls, others_cls = _BUILDERS[builder](), recordable_cpu_builder()

    def get_builder_cls() -> type[Any]:
        is_other = rank is not None and get_tensor_model_parallel_rank() != rank
        return others_cls if is_other else builder_cls

    CPUAttentionBackend.get_builder_cls = staticmethod(get_builder_cls)
    try:
        yield
    finally:
        CPUAttentionBackend.get_builder_cls = staticmethod(vllm_s)


def schedule_in_the_forward() -> None:
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
            if NOTES.is_handed_out(attn_metadata):
                # As FlashMLA: once a metadata object, for all who read it.
                attn_metadata.scheduler_metadata = schedule
            else:
                attn_metadata = replace(attn_metadata, scheduler_metadata=schedule)
        return forward(
            self, layer, query, key, value, kv_cache, attn_metadata, *args, **kwargs
        )

    impl.forward = scheduling
