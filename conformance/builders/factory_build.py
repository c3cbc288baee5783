"""The build of somebody's own builder, so that it can be judged without vLLM."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from graphparity.conformance.subjects.builder_state import LAYER_NAME, BuilderState
from graphparity.fastpath.builder_memory import builder_memory, member_tensors
from graphparity.fastpath.graph_key import GraphKey
from graphparity.fastpath.group_build import source_of
from graphparity.fastpath.proving.batches import longest_batch, shortest_batch
from graphparity.fastpath.proving.written_outputs import written_paths
from graphparity.fastpath.runtime_batch import RunnerBuffers, StepRows
from graphparity.fastpath.step_inputs import write_step_inputs
from graphparity.reference.attention import AttentionGroup, CommonAttentionMetadata
from graphparity.reference.block_table import BlockTables
from graphparity.reference.input_batch import InputBatch, InputBuffers
from graphparity.reference.interface import CUDAGraphMode
from graphparity.reference.kv_cache_interface import KVCacheConfig, KVCacheSpec


class FactoryBuild:
    """The build of one builder, over runner's buffers of its own.

    Args:
        builder: has ``build(common_prefix_len, common_attn_metadata)``; its tensors lie
            on ``device``.
        device: where the runner's buffers lie.
        key: the largest key that will be judged.
        max_model_len: the longest sequence, in tokens.
        block_size: tokens of a KV cache block.
    """

    def __init__(
        self,
        builder: Any,
        device: torch.device,
        key: GraphKey,
        max_model_len: int,
        block_size: int,
    ) -> None:
        max_num_reqs, max_num_tokens = key.rung
        blocks_a_row = -(-max_model_len // block_size)
        spec = KVCacheSpec(block_size=block_size)
        self._builder, self._device = builder, device
        self._groups = [
            [AttentionGroup(object, [LAYER_NAME], spec, 0, metadata_builders=[builder])]
        ]
        self._kv_cache_config = KVCacheConfig(1 + max_num_reqs * blocks_a_row, [], [])
        self._buffers = InputBuffers(max_num_reqs, max_num_tokens, device)
        self._tables = BlockTables(
            [block_size], max_num_reqs, max_num_tokens, [blocks_a_row], device
        )
        self._state = BuilderState(builder, max_model_len, CommonAttentionMetadata)
        batches = [
            longest_batch(key, max_model_len, seed=0),
            shortest_batch(key, max_num_reqs, seed=1),
            longest_batch(key, max_model_len, seed=0),
        ]
        self._written = written_paths(self._owned, self.stage, batches)

    @property
    def name(self) -> str:
        """The builder's qualified class name."""
        cls = type(self._builder)
        return f"{cls.__module__}.{cls.__qualname__}"

    @property
    def location(self) -> str:
        """``file:line`` of the builder's ``build``."""
        return source_of(self._builder.build)

    @property
    def inputs(self) -> Mapping[str, torch.Tensor]:
        """The runner's buffers, and what no build was seen to write."""
        owned, tables = self._owned(), self._tables
        return {
            **member_tensors(self._buffers, "input_buffers", self._device),
            "block_tables.input_block_tables[0]": tables.input_block_tables[0],
            "block_tables.slot_mappings": tables.slot_mappings,
            **{path: it for path, it in owned.items() if path not in self._written},
        }

    @property
    def outputs(self) -> Mapping[str, torch.Tensor]:
        """What the builder owns and was seen to write."""
        owned = self._owned()
        return {path: it for path, it in owned.items() if path in self._written}

    @property
    def rotating_inputs(self) -> Mapping[str, torch.Tensor]:
        """None."""
        return {}

    def stage(self, rows: StepRows) -> Callable[[], object]:
        """Write the step's inputs; returns the builder's build."""
        runner = RunnerBuffers(
            self._buffers,
            self._tables,
            InputBatch,
            self._state.max_model_len,
            self._kv_cache_config.num_blocks,
        )
        step = write_step_inputs(runner, rows)
        prepare_attn = partial(
            self._state.prepare_attn,
            step.input_batch,
            CUDAGraphMode.FULL,
            step.block_tables,
            step.slot_mappings,
            self._groups,
            self._kv_cache_config,
        )
        return lambda: prepare_attn()[LAYER_NAME]

    def _owned(self) -> dict[str, torch.Tensor]:
        path = f"builders.{LAYER_NAME}"
        owned = builder_memory(self._groups, self._device)
        return owned | member_tensors(self._builder, path, self._device)
