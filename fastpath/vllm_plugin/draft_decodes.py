"""The metadata builds of a draft model's own decode steps, as the prover stages them.

A draft of several tokens runs a decode step for each token after the first. Before
each, ``TargetDependentARSpeculator._multi_step_decode`` builds the metadata of the
draft's groups, over the speculator's own input buffers and the runner's block tables
and slots, and runs a FULL graph that reads the builders' buffers. The key of the
draft's dispatch fixes all host values of such a build but two bounds of sequence
lengths. Builders that
refresh their metadata inside of the draft's graph have no such builds: vLLM then runs
all steps as one graph.

From vLLM's ``v1/worker/gpu/spec_decode/speculator.py`` and
``target_dependent_ar/speculator.py``.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from graphparity.fastpath.graph_key import GraphKey, graph_key, keys_to_record
from graphparity.fastpath.metadata_graphs import AttnMetadata, BuildFn

BUILD = "_build_uniform_attn_metadata"
"""The speculator's method that builds for one decode step."""
_SEAM = ("propose", "_multi_step_decode", BUILD, "_build_attn_metadata")


class DraftRunner(NamedTuple):
    """What a draft's builds read, under the names of vLLM's ``GPUModelRunner``."""

    model_state: Any
    req_states: Any
    attn_groups: list[list[Any]]
    input_buffers: Any
    block_tables: Any
    kv_cache_config: Any
    max_num_reqs: int
    device: torch.device


def drafts_in_steps(speculator: Any) -> bool:
    """Whether a runner's speculator is a draft model that drafts token by token."""
    if speculator is None:
        return False
    from vllm.v1.worker.gpu.spec_decode.target_dependent_ar.speculator import (  # noqa: PLC0415
        TargetDependentARSpeculator,
    )

    return isinstance(speculator, TargetDependentARSpeculator)


def why_no_builds(speculator: Any) -> str:
    """Why no build of a draft model's decode steps is recorded; "" if they can be."""
    from vllm.v1.worker.gpu.spec_decode.target_dependent_ar.speculator import (  # noqa: PLC0415
        TargetDependentARSpeculator,
    )

    if speculator.num_speculative_steps == 1:
        return "it drafts one token and has no decode steps"
    if speculator.supports_decode_metadata_update:
        return "its builders refresh their metadata inside of its own graph"
    if not speculator.advance_draft_positions:
        return "it builds once for all of its decode steps"
    changed = [
        name
        for name in _SEAM
        if getattr(type(speculator), name)
        is not getattr(TargetDependentARSpeculator, name)
    ]
    if changed:
        return f"{type(speculator).__qualname__} has its own {', '.join(changed)}"
    return ""


class DraftDecodes:
    """Stages draft decode steps; what the prover takes for their model state.

    Args:
        speculator: vLLM's ``TargetDependentARSpeculator``, once it has captured.
        runner: its ``GPUModelRunner``.
    """

    def __init__(self, speculator: Any, runner: Any) -> None:
        from vllm.config.compilation import CUDAGraphMode  # noqa: PLC0415

        self._speculator, self.full_mode = speculator, CUDAGraphMode.FULL
        self.build: Callable[..., AttnMetadata] = getattr(speculator, BUILD)
        """The speculator's own."""
        self.runner = DraftRunner(
            model_state=runner.model_state,
            req_states=runner.req_states,
            attn_groups=speculator.attn_groups,
            input_buffers=speculator.input_buffers,
            block_tables=speculator.block_tables,
            kv_cache_config=speculator.kv_cache_config,
            max_num_reqs=speculator.max_num_reqs,
            device=runner.device,
        )

    @property
    def max_model_len(self) -> int:
        """The longest sequence in tokens."""
        return int(self._speculator.max_model_len)

    def keys(self) -> tuple[GraphKey, ...]:
        """The keys of the decode steps that the draft's dispatch serves by FULL graphs,
        largest first.
        """
        return keys_to_record(
            self._speculator.decode_cudagraph_manager.dispatch,
            max_num_reqs=self.runner.max_num_reqs,
            query_lens=[1],
            full_mode=self.full_mode,
        )

    def serve_by(self, build: Callable[..., AttnMetadata]) -> None:
        """Let the speculator build by ``build`` from now on."""
        vars(self._speculator)[BUILD] = build

    def give_back(self) -> None:
        """Let the speculator build by its own method again."""
        vars(self._speculator).pop(BUILD, None)

    def build_at(
        self,
        key: GraphKey,
        seq_lens_cpu_upper_bound: torch.Tensor,
        attn_groups: list[list[Any]],
    ) -> AttnMetadata:
        """Build eagerly under given host bounds, as a first draft step would.

        Args:
            key: the step's shape.
            seq_lens_cpu_upper_bound: [>= num_reqs] (host) of the step itself.
            attn_groups: the draft's, any of them emptied.
        """
        from vllm.v1.worker.gpu.cudagraph_utils import (  # noqa: PLC0415
            BatchExecutionDescriptor,
        )

        members = vars(self._speculator)
        kept = {name: members[name] for name in ("attn_groups", "draft_max_seq_len")}
        longest = int(seq_lens_cpu_upper_bound[: key.num_reqs].max())
        members.update(attn_groups=attn_groups, draft_max_seq_len=longest)
        try:
            return self.build(
                num_reqs=key.num_reqs,
                batch_desc=BatchExecutionDescriptor(
                    cg_mode=self.full_mode,
                    num_tokens=key.num_tokens_after_padding,
                    num_reqs=key.num_reqs_after_padding,
                    uniform_token_count=1,
                ),
                num_query_per_req=1,
                seq_lens_cpu_upper_bound=seq_lens_cpu_upper_bound,
                step=0,
            )
        finally:
            members.update(kept)

    def _stage_build(
        self,
        input_batch: Any,
        block_tables: tuple[torch.Tensor, ...],
        slot_mappings: torch.Tensor,
        attn_groups: list[list[Any]],
        kv_cache_config: Any,
    ) -> BuildFn:
        """As a specialized state's: the build of a step that is in the buffers."""
        del block_tables, slot_mappings, kv_cache_config
        key, bounds = graph_key(input_batch), input_batch.seq_lens_cpu_upper_bound

        def build() -> AttnMetadata:
            return self.build_at(key, bounds, attn_groups)

        return build
