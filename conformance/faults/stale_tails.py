"""K1: rows past the live ones keep what an earlier step left there.

The suite poisons every output before a step and compares whole buffers, so a tail that
a replay leaves alone shows at once; a tail that only some history leaves stale needs
that history.
"""

from contextlib import AbstractContextManager
from typing import Any

from graphparity.conformance.faults.fault import Kind, Layer, fault
from graphparity.conformance.faults.patches import replaced, while_capturing
from graphparity.conformance.subjects.torch_builders import (
    TorchCompressorBuilder,
    TorchSlidingWindowBuilder,
)
from graphparity.fastpath.replay_starts import KnownZeroReplayStarts


@fault(
    Kind.K1,
    "vllm#25247",
    "vllm#28579",
    check="decode steps",
    expected=r"sliding_window\.decode_swa_indices\[",
)
def windows_of_live_tokens_only() -> AbstractContextManager[Any]:
    """The recorded build fills the window indices before the step is padded, so only
    those of live tokens.
    """

    def fill(
        sound: Any, self: Any, batch: Any, table: Any, reqs: Any, valid: Any, *rest: Any
    ) -> None:
        live = slice(0, batch.num_tokens)
        sound(self, batch, table, reqs[live], valid[live], *rest)

    return while_capturing(TorchSlidingWindowBuilder, "_fill_windows", fill)


@fault(
    Kind.K1,
    "vllm#21196",
    "sglang#24401",
    check="decode steps",
    expected=r"compressor\.slot_mapping\[",
)
def ring_slots_keep_an_earlier_tail() -> AbstractContextManager[Any]:
    """The recorded build puts back the ring slots that padded tokens had before."""

    def build(sound: Any, self: Any, batch: Any, num_tokens: int, table: Any) -> Any:
        tail = slice(batch.num_tokens, num_tokens)
        kept = self.slot_mapping_buffer[tail].clone()
        built = sound(self, batch, num_tokens, table)
        self.slot_mapping_buffer[tail] = kept
        return built

    return while_capturing(TorchCompressorBuilder, "build", build)


@fault(
    Kind.K1,
    "vllm#41841",
    check="decode steps",
    expected=r"sliding_window\.is_valid_token\[",
)
def padded_tokens_stay_valid() -> AbstractContextManager[Any]:
    """The recorded build leaves the validity flags of padded tokens as an earlier,
    larger step set them.
    """

    def build(sound: Any, self: Any, batch: Any, table: Any, *rest: Any) -> Any:
        tail = slice(batch.num_tokens, batch.num_tokens_after_padding)
        kept = self.is_valid_token[tail].clone()
        built = sound(self, batch, table, *rest)
        self.is_valid_token[tail] = kept
        return built

    return while_capturing(TorchSlidingWindowBuilder, "build", build)


@fault(
    Kind.K1,
    "sglang#1094",
    "sglang#7233",
    check="decode steps",
    expected=r"sliding_window\.decode_swa_lens\[",
)
def padded_lengths_are_one() -> AbstractContextManager[Any]:
    """The recorded build fills the window lengths of padded tokens with 1, where the
    eager build has 0.
    """

    def build(sound: Any, self: Any, batch: Any, table: Any, *rest: Any) -> Any:
        built = sound(self, batch, table, *rest)
        tail = slice(batch.num_tokens, batch.num_tokens_after_padding)
        self.decode_swa_lens[tail] = 1
        return built

    return while_capturing(TorchSlidingWindowBuilder, "build", build)


@fault(
    Kind.K1,
    "ascend#5711",
    "vllm#47066",
    check="known history",
    expected=r"state\._replay_start\[",
    layer=Layer.STATE,
)
def rows_past_an_upload_taken_for_zeros() -> AbstractContextManager[Any]:
    """After an upload of zeros the state takes every row of the replay starts for zero,
    those too that an earlier and larger step filled.
    """

    def upload(sound: Any, self: Any, values: Any, num_reqs: int) -> Any:
        starts = sound(self, values, num_reqs)
        if self._num_zero_replay_starts:
            self._num_zero_replay_starts = len(self._replay_start)
        return starts

    return replaced(KnownZeroReplayStarts, "_upload_replay_start", upload)


@fault(
    Kind.K1,
    "lmdeploy#4569",
    "nano-vllm#190",
    check="decode steps",
    expected=r"sliding_window\.decode_swa_indices\[",
)
def padded_rows_read_live_blocks() -> AbstractContextManager[Any]:
    """The recorded build takes padded tokens for valid ones, and points them at the
    blocks of the row they map to.
    """

    def fill(sound: Any, self: Any, batch: Any, *rest: Any) -> None:
        table, reqs, valid, starts = rest
        sound(self, batch, table, reqs, valid | True, starts)

    return while_capturing(TorchSlidingWindowBuilder, "_fill_windows", fill)
