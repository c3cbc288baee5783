"""What the runner does before ``prepare_attn``: the step's inputs, put in place.

Follows vLLM's ``GPUModelRunner.prepare_inputs`` and ``prepare_attn``
(``v1/worker/gpu/model_runner.py``) for the buffers that a metadata build reads,
written from the host in one go. Rows and columns that the runner leaves alone
hold leftovers of earlier steps, drawn from the batch's seed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from graphparity.conformance.decode_batches import (
    DecodeBatch,
    DummyBatch,
    EagerBatch,
    PrefillBatch,
    Step,
)
from graphparity.conformance.subjects.subject import Subject
from graphparity.fastpath.decode_batch import padded_decode_batch
from graphparity.fastpath.graph_key import GraphKey

PAD_SLOT_ID = -1
NULL_BLOCK_ID = 0
NUM_BLOCKS = 4000
UNASSIGNED_SHARE = 0.1
"""Of the stale block-table entries, those that no block was ever assigned to."""

RINGLESS_SHARE = 0.1
"""Of the live requests, those that hold no ring block."""


@dataclass(frozen=True)
class StagedStep:
    """The arguments of one ``prepare_attn`` call."""

    input_batch: Any
    cudagraph_mode: Any
    block_tables: tuple[torch.Tensor, ...]
    slot_mappings: torch.Tensor
    for_capture: bool = False

    def run(self, subject: Subject, state: Any) -> Any:
        """The metadata that ``state`` prepares for this step."""
        return state.prepare_attn(
            self.input_batch,
            self.cudagraph_mode,
            self.block_tables,
            self.slot_mappings,
            subject.attn_groups,
            subject.kv_cache_config,
            for_capture=self.for_capture,
        )


@dataclass(frozen=True)
class _Rows:
    """The real and padded rows of a step, in host integers."""

    query_lens: Sequence[int]
    seq_lens: Sequence[int]
    req_state_indices: Sequence[int]
    padded_reqs: int
    padded_tokens: int
    seed: int
    is_prefilling: bool = False

    @property
    def num_reqs(self) -> int:
        return len(self.query_lens)

    @property
    def num_tokens(self) -> int:
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


def stage(subject: Subject, step: Step) -> StagedStep:
    """Write the step's inputs to the subject's buffers."""
    modes = subject.cudagraph_modes
    match step:
        case DecodeBatch():
            return _stage_rows(subject, _decode_rows(step), modes.FULL)
        case EagerBatch():
            return _stage_rows(subject, _decode_rows(step.batch, pad=False), modes.NONE)
        case PrefillBatch():
            _admit(subject, step)
            return _stage_rows(subject, _prefill_rows(step), modes.NONE)
        case DummyBatch():
            return _stage_dummy(subject, step)


def _decode_rows(batch: DecodeBatch, pad: bool = True) -> _Rows:
    key = batch.key
    return _Rows(
        query_lens=[key.query_len] * key.num_reqs,
        seq_lens=batch.seq_lens,
        req_state_indices=batch.req_state_indices,
        padded_reqs=key.num_reqs_after_padding if pad else key.num_reqs,
        padded_tokens=key.num_tokens_after_padding if pad else key.num_tokens,
        seed=batch.seed,
    )


def _prefill_rows(batch: PrefillBatch) -> _Rows:
    lengths = zip(batch.query_lens, batch.computed_lens, strict=True)
    return _Rows(
        query_lens=batch.query_lens,
        seq_lens=[query_len + computed for query_len, computed in lengths],
        req_state_indices=batch.req_state_indices,
        padded_reqs=len(batch.query_lens),
        padded_tokens=sum(batch.query_lens),
        seed=batch.seed,
        is_prefilling=True,
    )


def _admit(subject: Subject, batch: PrefillBatch) -> None:
    """Tell every state the requests' replay starts, as on their admission."""
    admitted = zip(batch.req_state_indices, batch.replay_starts, strict=True)
    for req_index, replay_start in admitted:
        request = SimpleNamespace(replay_start=replay_start, sampling_params=None)
        for state in (subject.state, subject.eager_state, subject.reference.state):
            state.add_request(req_index, request)


def _stage_dummy(subject: Subject, step: DummyBatch) -> StagedStep:
    key = step.key
    return StagedStep(
        input_batch=padded_decode_batch(
            key, subject.input_buffers, subject.limits.max_model_len
        ),
        cudagraph_mode=subject.cudagraph_modes.FULL,
        block_tables=subject.block_tables.get_dummy_block_tables(
            key.num_reqs_after_padding
        ),
        slot_mappings=subject.block_tables.get_dummy_slot_mappings(
            key.num_tokens_after_padding
        ),
        for_capture=True,
    )


def stage_capture(subject: Subject, rung: GraphKey) -> StagedStep:
    """The dummy step over which the runner captures a rung's forward graph."""
    tables = subject.block_tables
    return StagedStep(
        input_batch=subject.input_batch_cls.make_dummy(
            rung.num_reqs, rung.num_tokens, subject.input_buffers
        ),
        cudagraph_mode=subject.cudagraph_modes.NONE,
        block_tables=tables.get_dummy_block_tables(rung.num_reqs),
        slot_mappings=tables.get_dummy_slot_mappings(rung.num_tokens),
        for_capture=True,
    )


def _stage_rows(subject: Subject, rows: _Rows, mode: Any) -> StagedStep:
    rng = np.random.default_rng(rows.seed)
    _write_input_buffers(subject, rows, rng)
    block_ids = _write_block_tables(subject, rows, rng)
    _write_slot_mappings(subject, rows, block_ids)
    _write_token_ids(subject, rng)
    tables = subject.block_tables
    return StagedStep(
        input_batch=_input_batch(subject, rows),
        cudagraph_mode=mode,
        block_tables=tuple(t[: rows.padded_reqs] for t in tables.input_block_tables),
        slot_mappings=tables.slot_mappings[:, : rows.padded_tokens],
    )


def _fill(tensor: torch.Tensor, values: npt.NDArray[Any]) -> None:
    tensor.copy_(torch.from_numpy(np.ascontiguousarray(values)))


def _write_input_buffers(
    subject: Subject, rows: _Rows, rng: np.random.Generator
) -> None:
    """Live rows, the runner's padding, and stale positions past the real tokens."""
    buffers, limits = subject.input_buffers, subject.limits
    starts = np.full(limits.max_num_reqs + 1, rows.num_tokens, dtype=np.int32)
    starts[: rows.num_reqs + 1] = rows.query_start_loc[: rows.num_reqs + 1]
    seq_lens = np.zeros(limits.max_num_reqs, dtype=np.int32)
    seq_lens[: rows.num_reqs] = rows.seq_lens
    positions = rng.integers(0, limits.max_model_len, size=limits.max_num_tokens)
    positions[: rows.num_tokens] = rows.positions
    _fill(buffers.query_start_loc, starts)
    _fill(buffers.seq_lens, seq_lens)
    _fill(buffers.positions, positions)
    _fill(buffers.input_ids, rng.integers(0, 100, size=limits.max_num_tokens))
    _fill(buffers.is_padding, np.arange(limits.max_num_tokens) >= rows.num_tokens)


def _write_block_tables(
    subject: Subject, rows: _Rows, rng: np.random.Generator
) -> list[npt.NDArray[np.int32]]:
    """Distinct blocks in the live columns of the live rows, the null block in
    padded rows, leftovers elsewhere; -1 stands for an entry never assigned.
    """
    block_ids = []
    for table, block_size in zip(
        subject.block_tables.input_block_tables,
        subject.block_tables.block_sizes,
        strict=True,
    ):
        num_rows, width = table.shape
        stale = rng.integers(0, NUM_BLOCKS, size=(num_rows, width), dtype=np.int32)
        stale[rng.random(stale.shape) < UNASSIGNED_SHARE] = -1
        stale[rows.num_reqs : rows.padded_reqs] = NULL_BLOCK_ID
        ids = 1 + rng.permutation(NUM_BLOCKS - 1)[: rows.num_reqs * width]
        ids = ids.reshape(rows.num_reqs, width)
        used = -(-np.asarray(rows.seq_lens) // block_size)
        live = np.arange(width) < used[:, None]
        stale[: rows.num_reqs][live] = ids[live]
        if width == 1:  # a ring: a request may hold none, which is the null block
            ringless = rng.random(rows.num_reqs) < RINGLESS_SHARE
            stale[: rows.num_reqs][ringless] = NULL_BLOCK_ID
        _fill(table, stale)
        block_ids.append(stale)
    return block_ids


def _write_slot_mappings(
    subject: Subject, rows: _Rows, block_ids: list[npt.NDArray[np.int32]]
) -> None:
    """The slot of every token in each group that has slots; the pad id elsewhere."""
    req_of_token = np.repeat(np.arange(rows.num_reqs), rows.query_lens)
    slots = np.full(tuple(subject.block_tables.slot_mappings.shape), PAD_SLOT_ID)
    enabled = subject.block_tables.slot_mapping_enabled
    for group, block_size in enumerate(subject.block_tables.block_sizes):
        if bool(enabled[group]):
            blocks = block_ids[group][req_of_token, rows.positions // block_size]
            slots[group, : rows.num_tokens] = (
                blocks * block_size + rows.positions % block_size
            )
    _fill(subject.block_tables.slot_mappings, slots)


def _write_token_ids(subject: Subject, rng: np.random.Generator) -> None:
    token_ids = subject.req_states.all_token_ids.gpu
    _fill(token_ids, rng.integers(0, 100, size=tuple(token_ids.shape)))


def _input_batch(subject: Subject, rows: _Rows) -> Any:
    """The runner's ``InputBatch`` for these rows."""
    buffers, num_reqs = subject.input_buffers, rows.num_reqs
    query_lens = np.asarray(rows.query_lens, dtype=np.int32)
    seq_lens = np.asarray(rows.seq_lens, dtype=np.int32)
    bounds = torch.zeros(rows.padded_reqs, dtype=torch.int32)
    bounds[:num_reqs] = torch.from_numpy(seq_lens)
    idx_mapping_np = np.asarray(rows.req_state_indices, dtype=np.intp)
    idx_mapping = torch.from_numpy(idx_mapping_np.astype(np.int64))
    drafts = 0 if rows.is_prefilling else rows.query_lens[0] - 1
    num_logits = np.full(num_reqs, drafts + 1, dtype=np.int32)
    cu_num_logits = np.concatenate([[0], np.cumsum(num_logits)]).astype(np.int32)
    computed = seq_lens - query_lens
    prefill_lens = seq_lens + 1 if rows.is_prefilling else np.minimum(computed, 1)
    return subject.input_batch_cls(
        req_ids=[f"request-{index}" for index in rows.req_state_indices],
        num_reqs=num_reqs,
        num_reqs_after_padding=rows.padded_reqs,
        idx_mapping=idx_mapping,
        idx_mapping_np=idx_mapping_np,
        expanded_idx_mapping=idx_mapping.repeat_interleave(drafts + 1),
        expanded_local_pos=torch.arange(drafts + 1, dtype=torch.int32).repeat(num_reqs),
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
        logits_indices=torch.arange(rows.num_tokens)[-int(cu_num_logits[-1]) :],
        cu_num_logits=torch.from_numpy(cu_num_logits),
        cu_num_logits_np=cu_num_logits,
        has_structured_output_reqs=False,
        prompt_lens=None,
    )
