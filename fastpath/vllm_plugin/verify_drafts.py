"""Mode ``verify`` for the builds of a draft model's decode steps.

As ``verify`` does for a target's step: poison, replay, put back, build eagerly, also
under the recording's bounds, and compare; the draft goes on with an eager build.
"""

from typing import Any

from graphparity.fastpath.builder_memory import builder_memory
from graphparity.fastpath.decode_batch import worst_case_bounds
from graphparity.fastpath.graph_key import GraphKey
from graphparity.fastpath.metadata_graphs import AttnMetadata, BuildFn
from graphparity.fastpath.proving.group_memory import image_of, restore
from graphparity.fastpath.proving.replays import eager_result, result_of
from graphparity.fastpath.vllm_plugin.draft_builds import DraftBuilds
from graphparity.fastpath.vllm_plugin.rank_agreement import (
    VerifyError,
    raise_on_every_rank,
)
from graphparity.fastpath.vllm_plugin.verify import (
    described,
    differences,
    message,
    poison,
)


class VerifiedDraftBuilds(DraftBuilds):
    """Replayed builds are compared with eager ones."""

    def replay_or_build(self, batch_desc: Any, *step: Any, **rest: Any) -> AttnMetadata:
        """As the base; ranks agree after every build of a FULL step.

        Raises:
            VerifyError: a replay differs, on this rank or on another one.
        """
        built: AttnMetadata = {}
        error: VerifyError | None = None
        try:
            built = super().replay_or_build(batch_desc, *step, **rest)
        except VerifyError as found:
            error = found
        if batch_desc.cg_mode is self.decodes.full_mode:
            raise_on_every_rank(error)
        return built

    def _replay(self, key: GraphKey, build: BuildFn) -> AttnMetadata:
        """The eager metadata of a recorded step, compared with the replay.

        Raises:
            VerifyError: they differ; the message lists every path.
        """
        runner = self.decodes.runner
        memory = {
            "draft.seq_lens": runner.input_buffers.seq_lens,
            "draft.query_start_loc": runner.input_buffers.query_start_loc,
            "draft.positions": runner.input_buffers.positions,
            "draft.slot_mappings": runner.block_tables.slot_mappings,
            **{
                f"draft.block_tables[{i}]": table
                for i, table in enumerate(runner.block_tables.input_block_tables)
            },
            **builder_memory(runner.attn_groups, runner.device),
        }
        before = image_of(memory)
        poison(memory, self.written_paths)
        poisoned = image_of(memory)
        replayed = result_of(memory, described(super()._replay(key, build)))

        def build_as_recorded() -> AttnMetadata:
            bounds = worst_case_bounds(key, self.decodes.max_model_len)
            return described(self.decodes.build_at(key, bounds, runner.attn_groups))

        eager = eager_result(memory, poisoned, lambda: described(build()), replayed)
        as_recorded = eager_result(memory, poisoned, build_as_recorded, replayed)
        problems = [*differences(replayed, eager, as_recorded, memory)]
        if problems:
            raise VerifyError(message(key, problems))
        self.num_verified += 1
        restore(memory, before)
        return build()
