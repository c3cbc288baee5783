"""What the runner does before ``prepare_attn``: the step's inputs, put in place.

Prefills, dummy steps and captures are staged as their callers in vLLM do.
"""

import dataclasses
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from graphparity.conformance.decode_batches import (
    BlockIds,
    DecodeBatch,
    DummyBatch,
    EagerBatch,
    PrefillBatch,
    Step,
    UnrecordedBatch,
    VarlenBatch,
    seed_of,
)
from graphparity.conformance.subjects.subject import Subject
from graphparity.fastpath.decode_batch import padded_decode_batch
from graphparity.fastpath.graph_key import GraphKey
from graphparity.fastpath.runtime_batch import RunnerBuffers, StepRows
from graphparity.fastpath.step_inputs import write_step_inputs


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


def stage(subject: Subject, step: Step) -> StagedStep:
    """Write the step's inputs to the subject's buffers."""
    _write_accepted_tokens(subject, seed_of(step))
    modes = subject.cudagraph_modes
    match step:
        case DecodeBatch():
            rows = _decode_rows(step)
            return _stage_rows(subject, rows, modes.FULL, step.block_ids)
        case UnrecordedBatch():
            return stage(subject, step.batch)
        case VarlenBatch():
            staged = _stage_rows(
                subject, _decode_rows(step.batch), modes.FULL, step.batch.block_ids
            )
            bounded = dataclasses.replace(
                staged.input_batch, max_query_len=subject.limits.query_len
            )
            return dataclasses.replace(staged, input_batch=bounded)
        case EagerBatch():
            rows = _decode_rows(step.batch, pad=False)
            mode = modes.PIECEWISE if step.is_piecewise else modes.NONE
            if step.is_piecewise:
                padded = step.batch.key.num_tokens_after_padding
                rows = dataclasses.replace(rows, padded_tokens=padded)
            return _stage_rows(subject, rows, mode, step.batch.block_ids)
        case PrefillBatch():
            _admit(subject, step)
            mode = modes.FULL if step.full_key else modes.NONE
            return _stage_rows(subject, _prefill_rows(step), mode, step.block_ids)
        case DummyBatch():
            return _stage_dummy(subject, step)


def _decode_rows(batch: DecodeBatch, pad: bool = True) -> StepRows:
    key = batch.key
    return StepRows(
        query_lens=[key.query_len] * key.num_reqs,
        seq_lens=batch.seq_lens,
        req_state_indices=batch.req_state_indices,
        padded_reqs=key.num_reqs_after_padding if pad else key.num_reqs,
        padded_tokens=key.num_tokens_after_padding if pad else key.num_tokens,
        seed=batch.seed,
    )


def _prefill_rows(batch: PrefillBatch) -> StepRows:
    key = batch.full_key
    lengths = zip(batch.query_lens, batch.computed_lens, strict=True)
    return StepRows(
        query_lens=batch.query_lens,
        seq_lens=[query_len + computed for query_len, computed in lengths],
        req_state_indices=batch.req_state_indices,
        padded_reqs=key.num_reqs_after_padding if key else len(batch.query_lens),
        padded_tokens=key.num_tokens_after_padding if key else sum(batch.query_lens),
        seed=batch.seed,
        is_prefilling=True,
    )


def _admit(subject: Subject, batch: PrefillBatch) -> None:
    """Tell every state the requests' replay starts, as on their admission."""
    admitted = zip(batch.req_state_indices, batch.replay_starts, strict=True)
    for req_index, replay_start in admitted:
        request = SimpleNamespace(replay_start=replay_start, sampling_params=None)
        states: list[Any] = [subject.state, subject.eager_state]
        if subject.reference is not None:
            states.append(subject.reference.state)
        for state in states:
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


def _stage_rows(
    subject: Subject, rows: StepRows, mode: Any, block_ids: BlockIds | None
) -> StagedStep:
    runner = RunnerBuffers(
        input_buffers=subject.input_buffers,
        block_tables=subject.block_tables,
        input_batch_cls=subject.input_batch_cls,
        max_model_len=subject.limits.max_model_len,
        num_blocks=subject.kv_cache_config.num_blocks,
    )
    inputs = write_step_inputs(runner, rows)
    if block_ids is not None:
        _assign_blocks(subject, rows, block_ids)
    _write_token_ids(subject, rows.seed)
    return StagedStep(
        input_batch=inputs.input_batch,
        cudagraph_mode=mode,
        block_tables=inputs.block_tables,
        slot_mappings=inputs.slot_mappings,
    )


def _assign_blocks(subject: Subject, rows: StepRows, block_ids: BlockIds) -> None:
    """Overwrite the drawn blocks of every request, and the slots that lie in them."""
    tables = subject.block_tables
    req_of_token = np.repeat(np.arange(rows.num_reqs), rows.query_lens)
    for group, (table, size) in enumerate(
        zip(tables.input_block_tables, tables.block_sizes, strict=True)
    ):
        for row, ids in enumerate(block_ids[group]):
            table[row, : len(ids)] = torch.tensor(ids, dtype=table.dtype)
        if bool(tables.slot_mapping_enabled[group]):
            slots = [
                block_ids[group][req][position // size] * size + position % size
                for req, position in zip(req_of_token, rows.positions, strict=True)
            ]
            row_of_group = tables.slot_mappings[group]
            row_of_group[: len(slots)] = torch.tensor(slots, dtype=row_of_group.dtype)


def _write_token_ids(subject: Subject, seed: int) -> None:
    token_ids = subject.req_states.all_token_ids.gpu
    drawn = np.random.default_rng(seed).integers(0, 100, size=tuple(token_ids.shape))
    token_ids.copy_(torch.from_numpy(drawn))


def _write_accepted_tokens(subject: Subject, seed: int) -> None:
    """What the step before left: 1 to the query length for every request, before the
    step's new ones are admitted.
    """
    accepted = subject.accepted_tokens
    if accepted is not None:
        high = subject.limits.query_len + 1
        drawn = np.random.default_rng(seed).integers(
            1, high, size=tuple(accepted.shape)
        )
        accepted.copy_(torch.from_numpy(drawn))
