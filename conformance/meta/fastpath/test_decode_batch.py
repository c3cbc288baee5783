"""A key's padded dummy batch is laid out like a runtime step of that key."""

import dataclasses

import numpy as np
import pytest
import torch

from graphparity.conformance.decode_batches import DecodeBatch
from graphparity.conformance.memory import changed_paths, image_of
from graphparity.conformance.staging import stage
from graphparity.conformance.subjects.subject import Subject
from graphparity.conformance.subjects.torch_decode import torch_decode
from graphparity.fastpath.decode_batch import padded_decode_batch
from graphparity.fastpath.graph_key import GraphKey
from graphparity.reference.input_batch import InputBatch, InputBuffers

CPU = torch.device("cpu:0")
SAMPLING_FIELDS = {
    "expanded_idx_mapping",
    "expanded_local_pos",
    "logits_indices",
    "cu_num_logits",
    "cu_num_logits_np",
}
"""Read by sampling, after the forward: no metadata build reads them."""

WITHOUT_ROOM = {
    "max_num_reqs=3": (
        GraphKey(3, 4, 3, 4),
        (3, 8),
        16,
        "needs 4 requests but the input buffers hold 3: raise max_num_seqs",
    ),
    "max_num_tokens=7": (
        GraphKey(3, 4, 6, 8),
        (4, 7),
        16,
        "needs 8 tokens but the input buffers hold 7: raise max_num_batched_tokens",
    ),
    "max_model_len=2": (
        GraphKey(1, 1, 3, 3),
        (4, 8),
        2,
        "max_model_len 2 is below the query length 3",
    ),
    "malformed": (GraphKey(3, 2, 3, 2), (4, 8), 16, "num_reqs 3 exceeds"),
}


def made(query_len: int) -> Subject:
    """A subject of its own, whose buffers a test may overwrite."""
    return torch_decode(f"torch-decode:{query_len}", query_len, "emulated")


def runtime_step(subject: Subject, key: GraphKey) -> InputBatch:
    """The runner's batch of a step of ``key``."""
    lengths = tuple(10 + row for row in range(key.num_reqs))
    batch = DecodeBatch(key, lengths, tuple(range(key.num_reqs)))
    input_batch: InputBatch = stage(subject, batch).input_batch
    return input_batch


def dummy_step(subject: Subject, key: GraphKey) -> InputBatch:
    """The batch that ``key`` is recorded on."""
    return padded_decode_batch(key, subject.input_buffers, subject.limits.max_model_len)


def layout(value: object) -> object:
    """What a recording fixes of a field: its shape and dtype, or a count itself."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.stride(), value.dtype
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype
    return len(value) if isinstance(value, list) else value


@pytest.mark.parametrize("query_len", [1, 2, 3])
def test_every_field_is_laid_out_as_in_a_runtime_step(query_len: int) -> None:
    """Shapes, strides, dtypes and counts of every key."""
    subject = made(query_len)
    for key in subject.graph_keys:
        runtime, dummy = runtime_step(subject, key), dummy_step(subject, key)
        names = {field.name for field in dataclasses.fields(InputBatch)}
        wrong = {
            name: (layout(getattr(dummy, name)), layout(getattr(runtime, name)))
            for name in names - SAMPLING_FIELDS
            if layout(getattr(dummy, name)) != layout(getattr(runtime, name))
        }
        assert wrong == {}, key


@pytest.mark.parametrize("query_len", [1, 2, 3])
def test_device_fields_are_the_runner_buffers(query_len: int) -> None:
    """A recorded build reads the addresses that later steps fill."""
    subject = made(query_len)
    for key in subject.graph_keys:
        dummy, buffers = dummy_step(subject, key), subject.input_buffers
        for name in (
            "query_start_loc",
            "seq_lens",
            "input_ids",
            "positions",
            "is_padding",
        ):
            actual: torch.Tensor = getattr(dummy, name)
            assert actual.data_ptr() == getattr(buffers, name).data_ptr(), name


@pytest.mark.parametrize("query_len", [1, 2, 3])
def test_query_offsets_equal_a_runtime_step(query_len: int) -> None:
    """Host and device; padded requests are empty."""
    subject = made(query_len)
    for key in subject.graph_keys:
        runtime = runtime_step(subject, key)
        on_device = runtime.query_start_loc.clone()
        dummy = dummy_step(subject, key)
        expected = runtime.query_start_loc_np.tolist()
        assert dummy.query_start_loc_np.tolist() == expected
        assert dummy.query_start_loc.tolist() == on_device.tolist() == expected


def test_bounds_are_worst_case_in_live_rows_and_zero_in_padded_ones() -> None:
    """A bound frozen in the recording holds for every step of the key."""
    buffers = InputBuffers(8, 32, CPU)
    dummy = padded_decode_batch(GraphKey(3, 4, 6, 8), buffers, 64)
    assert dummy.seq_lens_cpu_upper_bound.tolist() == [64, 64, 64, 0]
    assert dummy.seq_lens.tolist()[3:] == [0]


@pytest.mark.parametrize(
    ("key", "total", "per_req"),
    [
        (GraphKey(3, 4, 3, 4), 0, None),
        (GraphKey(3, 4, 6, 8), 3, [1, 1, 1]),
        (GraphKey(2, 4, 6, 12), 4, [2, 2]),
    ],
    ids=["query_len=1", "query_len=2", "query_len=3"],
)
def test_draft_counts_fit_the_query_length(
    key: GraphKey, total: int, per_req: list[int] | None
) -> None:
    """One token of each request is sampled, the others are drafts."""
    dummy = padded_decode_batch(key, InputBuffers(8, 32, CPU), 64)
    counts = dummy.num_draft_tokens_per_req
    assert dummy.num_draft_tokens == total
    assert (None if counts is None else counts.tolist()) == per_req


@pytest.mark.parametrize(
    ("key", "room", "max_model_len", "reason"),
    WITHOUT_ROOM.values(),
    ids=WITHOUT_ROOM,
)
def test_key_without_room_is_refused_by_name(
    key: GraphKey, room: tuple[int, int], max_model_len: int, reason: str
) -> None:
    """One sentence with the key and the value that is too small."""
    buffers = InputBuffers(*room, CPU)
    with pytest.raises(ValueError, match="GraphKey") as caught:
        padded_decode_batch(key, buffers, max_model_len)
    assert reason in str(caught.value)
    assert repr(key) in str(caught.value)


def test_only_input_buffers_are_written() -> None:
    """Tables, slots and the builders' buffers are left alone."""
    subject = made(2)
    key = subject.graph_keys[1]
    runtime_step(subject, key)
    before = image_of(subject.memory)
    dummy_step(subject, key)
    changed = changed_paths(before, image_of(subject.memory))
    assert changed
    assert [path for path in changed if not path.startswith("input_buffers.")] == []
