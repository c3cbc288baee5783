"""Records the metadata builds of a draft model's decode steps, and replays them.

They are recorded inside of the speculator's own ``capture``, so that memory profiling
counts them. The speculator's build method is then replaced on the object, and put back
when the recordings are released. A build that is not recorded is vLLM's own, and is
counted under the reason why.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from graphparity.fastpath.decode_batch import padded_decode_batch
from graphparity.fastpath.graph_key import GraphKey, largest_of_rungs
from graphparity.fastpath.metadata_graphs import (
    AttnMetadata,
    BuildFn,
    EagerReason,
    MetadataGraphs,
)
from graphparity.fastpath.proving.verdict import Level, Verdict
from graphparity.fastpath.recorders.protocol import Recorder
from graphparity.fastpath.vllm_plugin.draft_decodes import DraftDecodes
from graphparity.fastpath.vllm_plugin.group_judge import judge_groups


class DraftBuilds:
    """The recordings of one draft model's decode steps.

    Args:
        decodes: stages them, once the speculator has captured.
        make_recorder: makes a recorder for a runner, or for what stands for one.
        level: how thoroughly the draft's groups are judged.
    """

    def __init__(
        self,
        decodes: DraftDecodes,
        make_recorder: Callable[[Any], Recorder],
        level: Level,
    ) -> None:
        self._make_recorder, self._level = make_recorder, level
        self.decodes, self.keys = decodes, decodes.keys()
        self.graphs = MetadataGraphs(make_recorder(decodes.runner))
        self.verdicts: dict[int, Verdict] = {}
        self.written_paths: frozenset[str] = frozenset()
        """Builder tensors that eager builds were seen to write."""
        self.num_verified = 0
        self.capture_s = self.judge_s = 0.0

    @property
    def attn_groups(self) -> list[list[Any]]:
        """The draft's attention groups, by KV-cache group."""
        return self.decodes.runner.attn_groups

    def record(self, *, can_judge: bool) -> None:
        """Judge and record, and serve the speculator's builds from now on.

        Args:
            can_judge: whether the KV cache has blocks over which a step can be staged;
                if not, all is recorded, so that its memory is counted.
        """
        begin = time.perf_counter()
        if can_judge:
            self._judge()
        if all(verdict.recordable for verdict in self.verdicts.values()):
            self.graphs.record(self._recorded_as(), self._stage)
        else:
            self.graphs.unrecorded_reason = EagerReason.CAPTURE_REFUSED
        self.capture_s = time.perf_counter() - begin
        self.decodes.serve_by(self.replay_or_build)

    def release(self) -> None:
        """Drop the recordings; the speculator builds as vLLM's again."""
        self.decodes.give_back()
        self.graphs.release()

    def replay_or_build(
        self,
        batch_desc: Any,
        num_reqs: int,
        num_query_per_req: int,
        seq_lens_cpu_upper_bound: torch.Tensor,
        step: int,
        **rest: Any,
    ) -> AttnMetadata:
        """As the speculator's build method; no host value of a replay is read, for the
        draft's FULL graph alone follows it.
        """

        def build() -> AttnMetadata:
            return self.decodes.build(
                batch_desc=batch_desc,
                num_reqs=num_reqs,
                num_query_per_req=num_query_per_req,
                seq_lens_cpu_upper_bound=seq_lens_cpu_upper_bound,
                step=step,
                **rest,
            )

        if batch_desc.cg_mode is not self.decodes.full_mode:
            self.graphs.count_eager(EagerReason.NOT_FULL)
            return build()
        key = GraphKey(num_reqs, batch_desc.num_reqs, num_reqs, batch_desc.num_tokens)
        if self.graphs.recording_of(key) is None:
            self.graphs.count_unrecorded(key)
            return build()
        return self._replay(key, build)

    def _replay(self, key: GraphKey, build: BuildFn) -> AttnMetadata:
        """The metadata of a recorded step."""
        del build
        replayed = self.graphs.replay(key)
        assert replayed is not None, f"{key} is recorded"
        return replayed

    def _judge(self) -> None:
        begin = time.perf_counter()
        judged = judge_groups(
            self.decodes,
            self.decodes.runner,
            self.keys,
            self._make_recorder,
            self._level,
        )
        self.judge_s = time.perf_counter() - begin
        self.verdicts = {index: verdict for index, (_, verdict) in judged.items()}
        self.written_paths = frozenset(
            path for build, _ in judged.values() for path in build.outputs
        )

    def _recorded_as(self) -> dict[GraphKey, GraphKey]:
        shares = [verdict.shares_rungs for verdict in self.verdicts.values()]
        keys: Sequence[GraphKey] = self.keys
        return (
            largest_of_rungs(keys) if shares and all(shares) else {k: k for k in keys}
        )

    def _stage(self, key: GraphKey) -> BuildFn:
        runner = self.decodes.runner
        batch = padded_decode_batch(
            key, runner.input_buffers, self.decodes.max_model_len
        )
        tables = runner.block_tables
        return self.decodes._stage_build(
            batch,
            tables.get_dummy_block_tables(key.num_reqs_after_padding),
            tables.get_dummy_slot_mappings(key.num_tokens_after_padding),
            runner.attn_groups,
            runner.kv_cache_config,
        )
