"""``conforms`` passes a sound builder, and tells of planted faults by their paths."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from graphparity.conformance import conforms
from graphparity.conformance.comparer import ParityError

NUM_TOKENS = 16


@dataclass
class LastBlocks:
    """Of each request the block of its last token, and the step's longest query."""

    last_blocks: torch.Tensor
    """[num_reqs] int32, device."""
    longest: int


class SoundBuilder:
    """Writes into a buffer of its own, without a look at device values."""

    def __init__(self, device: torch.device) -> None:
        self.last_blocks = torch.zeros(NUM_TOKENS, dtype=torch.int32, device=device)

    def build(self, common_prefix_len: int, common_attn_metadata: Any) -> LastBlocks:
        """The live rows, and zeros after them."""
        common = common_attn_metadata
        rows = self.last_blocks[: common.num_reqs]
        last = (common.seq_lens.long() - 1).clamp(min=0) // 8
        rows.copy_(common.block_table_tensor.gather(1, last[:, None])[:, 0])
        self._clear_tail(common.num_reqs)
        return LastBlocks(rows, common.max_query_len)

    def _clear_tail(self, num_reqs: int) -> None:
        self.last_blocks[num_reqs:] = 0


class FrozenBound(SoundBuilder):
    """Fills with a host value that no key fixes."""

    def build(self, common_prefix_len: int, common_attn_metadata: Any) -> LastBlocks:
        """The rows, capped by the longest sequence."""
        built = super().build(common_prefix_len, common_attn_metadata)
        built.last_blocks.add_(common_attn_metadata.max_seq_len)
        return built


class FrozenField(SoundBuilder):
    """Returns a host value that no key fixes."""

    def build(self, common_prefix_len: int, common_attn_metadata: Any) -> LastBlocks:
        """The longest sequence in place of the longest query."""
        built = super().build(common_prefix_len, common_attn_metadata)
        return LastBlocks(built.last_blocks, common_attn_metadata.max_seq_len)


class OtherMap(SoundBuilder):
    """Fills two maps by turns, so that a recording returns the map of another build."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.other = torch.zeros_like(self.last_blocks)

    def build(self, common_prefix_len: int, common_attn_metadata: Any) -> LastBlocks:
        """The map whose turn it is."""
        self.last_blocks, self.other = self.other, self.last_blocks
        return super().build(common_prefix_len, common_attn_metadata)


class StaleTail(SoundBuilder):
    """Clears what the build before left, as the host remembers it."""

    num_written = 0

    def _clear_tail(self, num_reqs: int) -> None:
        self.last_blocks[num_reqs : max(num_reqs, self.num_written)] = 0
        self.num_written = num_reqs


class FreshTensor(SoundBuilder):
    """Returns a tensor that is new in every build."""

    def build(self, common_prefix_len: int, common_attn_metadata: Any) -> LastBlocks:
        """A copy of the rows."""
        built = super().build(common_prefix_len, common_attn_metadata)
        return LastBlocks(built.last_blocks.clone(), built.longest)


class ReadsDevice(SoundBuilder):
    """Reads a device value on the host, which no graph can."""

    def build(self, common_prefix_len: int, common_attn_metadata: Any) -> LastBlocks:
        """The longest sequence, from the device."""
        built = super().build(common_prefix_len, common_attn_metadata)
        return LastBlocks(
            built.last_blocks, int(common_attn_metadata.seq_lens.max().item())
        )


@pytest.mark.parametrize("query_len", [1, 2])
def test_a_sound_builder_passes_and_is_counted(query_len: int) -> None:
    """Every decode step was replayed."""
    tally = conforms(SoundBuilder, query_len=query_len, max_examples=3)
    assert tally.decode_steps == tally.steps_replayed >= 8 * 3
    assert tally.batches > tally.decode_steps, "histories hold other steps as well"


@pytest.mark.parametrize(
    ("builder", "parts"),
    [
        (FrozenBound, ["attn.last_blocks[", "[GraphKey(", "DecodeBatch("]),
        (FrozenField, ["attn.longest: 64, but should be "]),
        (OtherMap, ["builders.attn.other[", "attn.last_blocks: at ("]),
        (StaleTail, ["builders.attn.last_blocks[", "check_step("]),
        (FreshTensor, ["attn.last_blocks: outside the builders' buffers"]),
        (ReadsDevice, ["the recordings of ReadsDevice:1", "Tensor.item"]),
    ],
)
def test_a_planted_fault_is_told_by_its_path(
    builder: type[SoundBuilder], parts: list[str]
) -> None:
    """With the key, the batch and the call that repeats it, where there is a batch."""
    with pytest.raises(ParityError) as caught:
        conforms(builder, max_examples=2)
    message = str(caught.value)
    assert [part for part in parts if part not in message] == [], message


def test_what_is_no_builder_is_refused() -> None:
    """One sentence, with what to return."""
    with pytest.raises(TypeError, match="made a dict, which has no build: return a "):
        conforms(lambda device: {})
    with pytest.raises(ValueError, match=r"constants builders\.attn\.no_such are no "):
        conforms(SoundBuilder, constants=["no_such"])
