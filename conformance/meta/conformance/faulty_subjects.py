"""Subjects with one fault each, which the checks must catch.

Faults that mirror public reports are planted by patches (``conformance/faults``). These
are what the checks' own tests need besides: subjects that have a fault for good.

A fault's function is a maker of subjects, so ``load_subject`` finds it by the
address ``graphparity.conformance.meta.conformance.faulty_subjects:FAULT:QUERY_LEN``.
The fault lies in the state under test or in its recordings; the eager twin is
sound, unless the function says otherwise.
"""

import copy
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from graphparity.conformance.faults.baked_scalars import fill_by_the_longest
from graphparity.conformance.subjects.subject import Subject
from graphparity.conformance.subjects.torch_builders import (
    TorchCompressorBuilder,
    TorchSlidingWindowBuilder,
)
from graphparity.conformance.subjects.torch_decode import torch_decode
from graphparity.reference.compressor import CompressorMetadata
from graphparity.reference.input_batch import InputBatch
from graphparity.reference.sliding_window import DeepseekSparseSWAMetadata

ADDRESS = "graphparity.conformance.meta.conformance.faulty_subjects"

State = Any
"""A specialized state, its private parts included."""
Operand = Any
"""An argument handed through to a sound builder."""


def _state(subject: Subject) -> State:
    """The state under test, whose recordings are tampered with."""
    return subject.state


def _with_builder(subject: Subject, attribute: str, cls: type[object]) -> Subject:
    """``subject`` recorded with a builder of ``cls`` over the sound one's buffers."""
    state = _state(subject)
    faulty = copy.copy(getattr(state, attribute))
    faulty.__class__ = cls
    setattr(state, attribute, faulty)
    state.capture_inner_cudagraphs(
        subject.input_buffers,
        subject.block_tables,
        subject.attn_groups,
        subject.kv_cache_config,
    )
    return subject


class _FrozenLength(TorchSlidingWindowBuilder):
    def _fill_windows(self, batch: InputBatch, *rest: Operand) -> None:
        fill_by_the_longest(TorchSlidingWindowBuilder._fill_windows, self, batch, *rest)


def frozen_host_field(name: str, query_len: int, recorder: str) -> Subject:
    """The recorded metadata holds a host count of some other step."""
    subject = torch_decode(name, query_len, recorder)
    for recording in _state(subject).graphs.recordings.values():
        window = recording.attn_metadata["sliding_window"]
        recording.attn_metadata["sliding_window"] = replace(window, num_decodes=99)
    return subject


class _WrongPosition(TorchCompressorBuilder):
    def build(self, batch: InputBatch, *rest: Operand) -> CompressorMetadata:
        next_positions = batch.positions + 1
        return super().build(replace(batch, positions=next_positions), *rest)


def wrong_position_read(name: str, query_len: int, recorder: str) -> Subject:
    """The ring slot is that of the position after the token's."""
    subject = torch_decode(name, query_len, recorder)
    return _with_builder(subject, "compressor", _WrongPosition)


class _Overwriting(TorchCompressorBuilder):
    def build(self, batch: InputBatch, *rest: Operand) -> CompressorMetadata:
        built = super().build(batch, *rest)
        batch.input_ids[0] += 1
        return built


def overwritten_input(name: str, query_len: int, recorder: str) -> Subject:
    """The build changes a token id that the forward is yet to read."""
    subject = torch_decode(name, query_len, recorder)
    return _with_builder(subject, "compressor", _Overwriting)


def undeclared_input_write(name: str, query_len: int, recorder: str) -> Subject:
    """State and eager twin change the same input alike, without declaring it."""
    subject = overwritten_input(name, query_len, recorder)
    twin: Any = subject.eager_state
    twin.compressor = _state(subject).compressor
    return subject


def _declaring_input_ids(subject: Subject) -> Subject:
    """``subject``, whose decode steps are known to write ``input_ids`` too."""
    also_written = subject.also_written | {"input_buffers.input_ids"}
    return replace(subject, also_written=also_written)


def declared_input_write(name: str, query_len: int, recorder: str) -> Subject:
    """No fault: both change one input alike, and the subject declares it."""
    subject = undeclared_input_write(name, query_len, recorder)
    return _declaring_input_ids(subject)


def declared_input_write_of_one_side(
    name: str, query_len: int, recorder: str
) -> Subject:
    """Declared, but the eager twin leaves the input alone."""
    subject = overwritten_input(name, query_len, recorder)
    return _declaring_input_ids(subject)


class _Straying(TorchCompressorBuilder):
    def build(self, batch: InputBatch, *rest: Operand) -> CompressorMetadata:
        built = super().build(batch, *rest)
        self.token_range[-1] += 1
        return built


def write_outside_outputs(name: str, query_len: int, recorder: str) -> Subject:
    """The build writes a constant of its builder, which is no declared output."""
    subject = torch_decode(name, query_len, recorder)
    return _with_builder(subject, "compressor", _Straying)


def never_replays(name: str, query_len: int, recorder: str) -> Subject:
    """Every recording is gone, so every step builds eagerly."""
    subject = torch_decode(name, query_len, recorder)
    _state(subject).graphs.release()
    return subject


def replays_always(name: str, query_len: int, recorder: str) -> Subject:
    """Dummy steps and prefills are served by some recording, too."""
    subject = torch_decode(name, query_len, recorder)
    state = _state(subject)
    last_key = subject.graph_keys[-1]
    build = state._build_attn_metadata

    def replay_any(batch: InputBatch, *step: Operand, **kwargs: Operand) -> Operand:
        if batch.has_prefill or kwargs["for_capture"]:
            return state.graphs.replay(last_key)
        return build(batch, *step, **kwargs)

    state._build_attn_metadata = replay_any
    return subject


def skipped_upload(name: str, query_len: int, recorder: str) -> Subject:
    """Zero replay starts are never uploaded, whatever the step before left."""
    subject = torch_decode(name, query_len, recorder)
    state = _state(subject)
    upload = state._upload_replay_start

    def skip_zeros(values: npt.NDArray[np.int32], num_reqs: int) -> torch.Tensor:
        if values.any():
            upload(values, num_reqs)
        starts: torch.Tensor = state._replay_start[:num_reqs]
        return starts

    state._upload_replay_start = skip_zeros
    return subject


class _ShortAtEdges(TorchSlidingWindowBuilder):
    def build(self, batch: InputBatch, *rest: Operand) -> DeepseekSparseSWAMetadata:
        built = super().build(batch, *rest)
        at_edge = batch.seq_lens[rest[2].long()] % self.block_size == 0
        short = (built.decode_swa_lens - at_edge.int()).clamp(min=0)
        built.decode_swa_lens.copy_(short)
        return built


RARE_LENGTHS = {37}
"""Of sequences, in tokens."""


def wrong_at_rare_lengths(name: str, query_len: int, recorder: str) -> Subject:
    """A step of one request of such a length counts a slot too many. The smallest key
    is the subject's only one.
    """
    subject = torch_decode(name, query_len, recorder)
    state = _state(subject)
    prepare_attn = state.prepare_attn

    def prepare_wrongly(
        batch: InputBatch, *step: Operand, **kwargs: Operand
    ) -> Operand:
        built = prepare_attn(batch, *step, **kwargs)
        if batch.num_reqs == 1 and int(batch.seq_lens[0]) in RARE_LENGTHS:
            built["sliding_window"].decode_swa_lens.add_(1)
        return built

    state.prepare_attn = prepare_wrongly
    return replace(subject, graph_keys=subject.graph_keys[-1:])


def window_short_at_block_edges(name: str, query_len: int, recorder: str) -> Subject:
    """Both sides count one slot too few where a sequence ends at a block's end."""
    return _on_both_sides(torch_decode(name, query_len, recorder), _ShortAtEdges)


def follows_bound(name: str, query_len: int, recorder: str) -> Subject:
    """Both sides take every length from the host's bound, which a recording freezes."""
    return _on_both_sides(torch_decode(name, query_len, recorder), _FrozenLength)


class _ToldLength(_FrozenLength):
    def build(self, batch: InputBatch, *rest: Operand) -> Operand:
        longest = int(batch.seq_lens_cpu_upper_bound.max())
        return replace(super().build(batch, *rest), num_decodes=longest)


def follows_told_bound(name: str, query_len: int, recorder: str) -> Subject:
    """As ``follows_bound``; the metadata's ``num_decodes`` tells the bound."""
    return _on_both_sides(torch_decode(name, query_len, recorder), _ToldLength)


def _on_both_sides(
    subject: Subject, cls: type[object], attribute: str = "sliding_window"
) -> Subject:
    """``subject`` with a builder of ``cls``, its eager twin too."""
    _with_builder(subject, attribute, cls)
    setattr(subject.eager_state, attribute, getattr(subject.state, attribute))
    return subject


class _BeyondBound(TorchCompressorBuilder):
    def build(self, batch: InputBatch, *rest: Operand) -> CompressorMetadata:
        built = super().build(batch, *rest)
        built.slot_mapping.clamp_(max=1_000_000)
        return built


def bound_out_of_reach(name: str, query_len: int, recorder: str) -> Subject:
    """Both sides clamp slots at a bound that none comes near: nothing shows another."""
    subject = torch_decode(name, query_len, recorder)
    return _on_both_sides(subject, _BeyondBound, "compressor")


class _AddingTwice(TorchCompressorBuilder):
    def build(self, batch: InputBatch, *rest: Operand) -> CompressorMetadata:
        built = super().build(batch, *rest)
        built.slot_mapping.add_(1)
        built.slot_mapping.add_(2)
        return built


def order_without_effect(name: str, query_len: int, recorder: str) -> Subject:
    """Both sides add to the slots twice, which gives the same in either order."""
    subject = torch_decode(name, query_len, recorder)
    return _on_both_sides(subject, _AddingTwice, "compressor")


class _AddingNothing(TorchCompressorBuilder):
    def build(self, batch: InputBatch, *rest: Operand) -> CompressorMetadata:
        built = super().build(batch, *rest)
        built.slot_mapping.add_(self.token_range[0:1].clamp(max=0))
        return built


def row_without_effect(name: str, query_len: int, recorder: str) -> Subject:
    """Both sides add a row clamped to 0, whatever it held."""
    subject = torch_decode(name, query_len, recorder)
    return _on_both_sides(subject, _AddingNothing, "compressor")


def not_a_subject(name: str, query_len: int, recorder: str) -> str:
    """Makes something that is no subject."""
    return name


def lacks_methods(name: str, query_len: int, recorder: str) -> Subject:
    """Its state offers ``prepare_inputs`` alone."""
    subject = torch_decode(name, query_len, recorder)
    state: Any = SimpleNamespace(prepare_inputs=None)
    return replace(subject, state=state)


def name_of(fault: Callable[[str, int, str], Subject], query_len: int) -> str:
    """The name by which ``load_subject`` makes the subject of ``fault``."""
    return f"{ADDRESS}:{fault.__name__}:{query_len}"
