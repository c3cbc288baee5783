"""The runner's ``InputBatch`` for given rows, as vLLM's ``prepare_inputs`` makes it.

From vLLM's ``v1/worker/gpu/model_runner.py``. A row is one request of the step;
padded rows are empty requests.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from graphparity.fastpath.graph_key import GraphKey


@dataclass(frozen=True)
class StepRows:
    """The real and padded rows of a step, in host integers."""

    query_lens: Sequence[int]
    """[num_reqs] tokens of each request in this step."""
    seq_lens: Sequence[int]
    """[num_reqs] tokens of each request, those of this step included."""
    req_state_indices: Sequence[int]
    """[num_reqs] batch row -> index of the request in the runner's state."""
    padded_reqs: int
    padded_tokens: int
    seed: int
    """Seeds block ids, token ids, and what earlier steps left in the tails."""
    is_prefilling: bool = False

    @property
    def key(self) -> GraphKey:
        """The key of these rows as a decode step."""
        return GraphKey(
            self.num_reqs, self.padded_reqs, self.num_tokens, self.padded_tokens
        )

    @property
    def num_reqs(self) -> int:
        """Real requests."""
        return len(self.query_lens)

    @property
    def num_tokens(self) -> int:
        """Real tokens."""
        return sum(self.query_lens)

    @property
    def query_start_loc(self) -> npt.NDArray[np.int32]:
        """[padded_reqs + 1] padded requests are empty and start at the end."""
        starts = np.full(self.padded_reqs + 1, self.num_tokens, dtype=np.int32)
        starts[0] = 0
        starts[1 : self.num_reqs + 1] = np.cumsum(self.query_lens)
        return starts

    @property
    def positions(self) -> npt.NDArray[np.int64]:
        """[num_tokens] position of every token in its sequence."""
        return np.concatenate(
            [
                np.arange(seq_len - query_len, seq_len)
                for query_len, seq_len in zip(
                    self.query_lens, self.seq_lens, strict=True
                )
            ]
        )


@dataclass(frozen=True)
class RunnerBuffers:
    """The runner's persistent buffers, and what bounds their contents."""

    input_buffers: Any
    block_tables: Any
    input_batch_cls: Any
    max_model_len: int
    num_blocks: int
    """Blocks of each KV-cache group; ids below it are valid, 0 is the null block."""
    staged_groups: Collection[int] | None = None
    """Indices of the KV-cache groups whose tables and slots a step writes; None writes
    all."""

    def is_staged(self, group: int) -> bool:
        """Whether a step writes the tables and slots of a KV-cache group."""
        return self.staged_groups is None or group in self.staged_groups


def runtime_batch(runner: RunnerBuffers, rows: StepRows) -> Any:
    """The runner's ``InputBatch`` for these rows."""
    buffers, num_reqs = runner.input_buffers, rows.num_reqs
    query_lens = np.asarray(rows.query_lens, dtype=np.int32)
    seq_lens = np.asarray(rows.seq_lens, dtype=np.int32)
    bounds = torch.zeros(rows.padded_reqs, dtype=torch.int32)
    bounds[:num_reqs] = torch.from_numpy(seq_lens)
    idx_mapping_np = np.asarray(rows.req_state_indices, dtype=np.intp)
    idx_mapping = _on_device(runner, idx_mapping_np.astype(np.int64))
    drafts = 0 if rows.is_prefilling else rows.query_lens[0] - 1
    num_logits = np.full(num_reqs, drafts + 1, dtype=np.int32)
    cu_num_logits = np.concatenate([[0], np.cumsum(num_logits)]).astype(np.int32)
    computed = seq_lens - query_lens
    prefill_lens = seq_lens + 1 if rows.is_prefilling else np.minimum(computed, 1)
    return runner.input_batch_cls(
        req_ids=[f"request-{index}" for index in rows.req_state_indices],
        num_reqs=num_reqs,
        num_reqs_after_padding=rows.padded_reqs,
        idx_mapping=idx_mapping,
        idx_mapping_np=idx_mapping_np,
        expanded_idx_mapping=idx_mapping.repeat_interleave(drafts + 1),
        expanded_local_pos=_on_device(
            runner, np.tile(np.arange(drafts + 1, dtype=np.int32), num_reqs)
        ),
        num_scheduled_tokens=query_lens,
        num_tokens=rows.num_tokens,
        num_tokens_after_padding=rows.padded_tokens,
        num_draft_tokens=drafts * num_reqs,
        num_draft_tokens_per_req=num_logits - 1 if drafts else None,
        query_start_loc=buffers.query_start_loc[: rows.padded_reqs + 1],
        query_start_loc_np=rows.query_start_loc,
        seq_lens=buffers.seq_lens[: rows.padded_reqs],
        seq_lens_cpu_upper_bound=bounds,
        dcp_local_seq_lens=None,
        num_computed_tokens_np=computed,
        prefill_len_np=prefill_lens.astype(np.int32),
        num_computed_prefill_tokens_np=np.minimum(computed, prefill_lens),
        is_prefilling_np=np.full(num_reqs, rows.is_prefilling),
        has_prefill=rows.is_prefilling,
        decode_graph_eligible=not rows.is_prefilling,
        input_ids=buffers.input_ids[: rows.padded_tokens],
        positions=buffers.positions[: rows.padded_tokens],
        is_padding=buffers.is_padding[: rows.padded_tokens],
        logits_indices=_on_device(
            runner, np.arange(rows.num_tokens)[-int(cu_num_logits[-1]) :]
        ),
        cu_num_logits=_on_device(runner, cu_num_logits),
        cu_num_logits_np=cu_num_logits,
        has_structured_output_reqs=False,
        prompt_lens=None,
    )


def _on_device(runner: RunnerBuffers, values: npt.NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(values).to(runner.input_buffers.positions.device)
