"""One KV-cache group's build over the runner's own buffers, to be judged.

It is staged through the model state's own ``prepare_attn``, with the other groups
masked, but for one that its metadata is derived from, so what is judged is what will be
recorded. It overwrites the runner's input buffers and block tables: only inside the
runner's capture.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from graphparity.fastpath.builder_memory import (
    builder_memory,
    member_tensors,
)
from graphparity.fastpath.group_build import source_of
from graphparity.fastpath.metadata_graphs import AttnMetadata
from graphparity.fastpath.proving.written_outputs import written_paths
from graphparity.fastpath.runtime_batch import RunnerBuffers, StepRows
from graphparity.fastpath.step_inputs import write_step_inputs
from graphparity.fastpath.vllm_plugin.derived_groups import groups_built_with


class RunnerGroupBuild:
    """The build of KV-cache group ``index`` of a runner's model state.

    Args:
        state: the specialized model state.
        runner: vLLM's ``GPUModelRunner``, while it captures.
        index: which of its KV-cache groups.
    """

    def __init__(self, state: Any, runner: Any, index: int) -> None:
        self._state, self._runner = state, runner
        self._built = groups_built_with(runner.attn_groups, index)
        self._attn_groups = [
            groups if it in self._built else []
            for it, groups in enumerate(runner.attn_groups)
        ]
        self._owned = builder_memory(self._attn_groups, runner.device)
        self._written: frozenset[str] = frozenset()
        self._index = index

    @property
    def name(self) -> str:
        """The qualified names of the group's builders."""
        names = [
            f"{cls.__module__}.{cls.__qualname__}" for cls in self._builder_classes
        ]
        return ", ".join(dict.fromkeys(names))

    @property
    def location(self) -> str:
        """``file:line`` of the first builder's ``build``."""
        return source_of(self._builder_classes[0].build)

    @property
    def _builder_classes(self) -> list[Any]:
        groups = self._attn_groups[self._index]
        return [type(group.get_metadata_builder()) for group in groups]

    @property
    def inputs(self) -> Mapping[str, torch.Tensor]:
        """The runner's buffers, the state's, and what no build was seen to write."""
        tables, device = self._runner.block_tables, self._runner.device
        return {
            **member_tensors(self._runner.input_buffers, "input_buffers", device),
            **{
                f"block_tables[{it}]": tables.input_block_tables[it]
                for it in self._built
            },
            "slot_mappings": tables.slot_mappings,
            **member_tensors(self._state, "model_state", device),
            **{p: it for p, it in self._owned.items() if p not in self._written},
        }

    @property
    def outputs(self) -> Mapping[str, torch.Tensor]:
        """What the builders own and were seen to write."""
        return {p: it for p, it in self._owned.items() if p in self._written}

    @property
    def rotating_inputs(self) -> Mapping[str, torch.Tensor]:
        """None is declared: what rotates lies outside of the seams."""
        return {}

    def find_outputs(self, batches: Iterable[StepRows]) -> None:
        """Note which builder tensors eager builds of ``batches`` write."""

        def owned() -> Mapping[str, torch.Tensor]:
            self._owned = builder_memory(self._attn_groups, self._runner.device)
            return self._owned

        self._written = written_paths(owned, self.stage, batches)

    def stage(self, rows: StepRows) -> Callable[[], object]:
        """Write a step's inputs; returns the group's build, a metadata object a
        builder.
        """
        self._draw_accepted_tokens(rows)
        step = write_step_inputs(self._buffers(), rows)
        build = self._state._stage_build(
            step.input_batch,
            step.block_tables,
            step.slot_mappings,
            self._attn_groups,
            self._runner.kv_cache_config,
        )

        def build_group() -> AttnMetadata:
            return distinct(build())

        return build_group

    def _draw_accepted_tokens(self, rows: StepRows) -> None:
        """What each request of a hybrid accepted in its last step: 1 to the query
        length, from the step's seed.
        """
        accepted = getattr(self._state, "num_accepted_tokens_gpu", None)
        if accepted is not None:
            generator = torch.Generator().manual_seed(rows.seed)
            high = max(rows.query_lens) + 1
            accepted.copy_(
                torch.randint(1, high, tuple(accepted.shape), generator=generator)
            )

    def _buffers(self) -> RunnerBuffers:
        from vllm.v1.worker.gpu.input_batch import InputBatch  # noqa: PLC0415

        return RunnerBuffers(
            input_buffers=self._runner.input_buffers,
            block_tables=self._runner.block_tables,
            input_batch_cls=InputBatch,
            max_model_len=self._state.max_model_len,
            num_blocks=self._runner.kv_cache_config.num_blocks,
            staged_groups=(self._index,),
        )


def distinct(attn_metadata: AttnMetadata) -> AttnMetadata:
    """Every metadata object once, under its first layer: layers share them."""
    firsts = {id(it): name for name, it in reversed(attn_metadata.items())}
    return {name: attn_metadata[name] for name in reversed(list(firsts.values()))}
