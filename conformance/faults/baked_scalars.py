"""K3: a host scalar, a stride or a branch of the capture is replayed for other steps.

Recorded with long sequences and replayed with short ones, or the reverse: the checks
record at the model's length and replay all lengths; the one fault that records with
short ones brings its own dummy batches.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from itertools import count
from typing import Any
from unittest import mock

import torch

from graphparity.conformance.faults.fault import Kind, fault
from graphparity.conformance.faults.patches import replaced, while_capturing
from graphparity.conformance.subjects.torch_builders import (
    TorchCompressorBuilder,
    TorchSlidingWindowBuilder,
)
from graphparity.fastpath import decode_batch
from graphparity.fastpath.graph_key import GraphKey


def fill_by_the_longest(sound: Any, self: Any, batch: Any, *rest: Any) -> None:
    """Fill the windows as if all sequences had the host's longest length."""
    longest = int(batch.seq_lens_cpu_upper_bound.max())
    lengths = torch.full_like(batch.seq_lens, longest)
    sound(self, replace(batch, seq_lens=lengths), *rest)


@fault(
    Kind.K3,
    "vllm#52492",
    check="decode steps",
    expected=r"sliding_window\.decode_swa_indices\[",
)
@contextmanager
def short_context_shortcut_recorded() -> Iterator[None]:
    """The build takes a shortcut where the host knows all sequences to be shorter than
    the window; recorded over short dummies, it is replayed for long ones.
    """

    def short_bounds(key: GraphKey, max_model_len: int) -> torch.Tensor:
        return torch.full((key.num_reqs_after_padding,), key.query_len).int()

    def fill(sound: Any, self: Any, batch: Any, *rest: Any) -> None:
        if int(batch.seq_lens_cpu_upper_bound.max()) <= self.window:
            batch = replace(batch, seq_lens=batch.seq_lens.clamp(max=self.window))
        sound(self, batch, *rest)

    with (
        mock.patch.object(decode_batch, "worst_case_bounds", short_bounds),
        replaced(TorchSlidingWindowBuilder, "_fill_windows", fill),
    ):
        yield


@fault(
    Kind.K3,
    "aprender#2030",
    "onnxruntime#32239",
    check="decode steps",
    expected=r"sliding_window\.decode_swa_lens\[.*: \[8.*but should be \[[0-7]",
)
def long_context_algorithm_recorded() -> AbstractContextManager[Any]:
    """The build changes to an algorithm for long sequences where the host knows all to
    be longer than the window; the key does not tell which.
    """

    def fill(sound: Any, self: Any, batch: Any, *rest: Any) -> None:
        live = batch.seq_lens_cpu_upper_bound[: batch.num_reqs]
        if int(live.min()) > self.window:
            batch = replace(batch, seq_lens=batch.seq_lens.clamp(min=self.window + 1))
        sound(self, batch, *rest)

    return replaced(TorchSlidingWindowBuilder, "_fill_windows", fill)


@fault(
    Kind.K3,
    "flashinfer#4647",
    "vllm#19106",
    check="decode steps",
    expected=r"sliding_window\.decode_swa_lens\[",
)
def longest_length_frozen() -> AbstractContextManager[Any]:
    """The recorded build holds the host's longest length instead of ``seq_lens``."""
    return while_capturing(
        TorchSlidingWindowBuilder, "_fill_windows", fill_by_the_longest
    )


@fault(
    Kind.K3,
    "onnxruntime#32239",
    "vllm#20301",
    check="decode steps",
    expected=r"sliding_window\.decode_swa_width: 8, but should be [1-7]$",
)
def split_count_planned_from_the_longest() -> AbstractContextManager[Any]:
    """Both builds plan a host field from the longest sequence, which no reader can take
    for a bound.
    """

    def build(sound: Any, self: Any, batch: Any, *rest: Any) -> Any:
        longest = int(batch.seq_lens_cpu_upper_bound.max())
        built = sound(self, batch, *rest)
        return replace(built, decode_swa_width=min(self.window, longest))

    return replaced(TorchSlidingWindowBuilder, "build", build)


@fault(
    Kind.K3,
    "rtp-llm#1251",
    check="decode steps",
    expected=r"compressor\.slot_mapping\[",
)
def host_counter_frozen() -> AbstractContextManager[Any]:
    """Both builds rotate the ring by a counter on the host, which a replay does not
    advance.
    """
    builds = count()

    def build(sound: Any, self: Any, batch: Any, *rest: Any) -> Any:
        rotated = batch.positions + next(builds) % 3
        return sound(self, replace(batch, positions=rotated), *rest)

    return replaced(TorchCompressorBuilder, "build", build)
