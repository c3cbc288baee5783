"""Group builds that must not be recorded, each wrong in one way; and a sound one.

Plain torch over buffers of their own: they need no vLLM, and a judge that knows no
names has to find out what they do. The line at fault ends in ``# wrong``.
"""

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch

from graphparity.fastpath.group_build import GroupBuild, source_of
from graphparity.fastpath.recorders import EmulatedRecorder
from graphparity.fastpath.runtime_batch import RunnerBuffers, StepRows
from graphparity.fastpath.step_inputs import StepInputs, write_step_inputs
from graphparity.reference.block_table import BlockTables
from graphparity.reference.input_batch import InputBatch, InputBuffers

DEVICE = torch.device("cpu:0")
MAX_NUM_REQS, MAX_NUM_TOKENS, MAX_MODEL_LEN, BLOCK_SIZE = 8, 32, 64, 8


@dataclass
class PlainMetadata:
    """What the builds below return; tensors are views of persistent buffers."""

    seq_lens: torch.Tensor
    token_to_req_indices: torch.Tensor
    token_lens: torch.Tensor
    num_reqs: int
    max_seq_len: int | None = None


class PlainBuild:
    """A sound `GroupBuild`: each token's request, and that request's length."""

    pinned_memory: tuple[torch.Tensor, ...] = ()
    """Pinned host memory, owned by the build or not."""

    def __init__(self) -> None:
        self.buffers = InputBuffers(MAX_NUM_REQS, MAX_NUM_TOKENS, DEVICE)
        self.tables = BlockTables(
            [BLOCK_SIZE],
            MAX_NUM_REQS,
            MAX_NUM_TOKENS,
            [MAX_MODEL_LEN // BLOCK_SIZE],
            DEVICE,
        )
        self.token_to_req_indices = torch.zeros(MAX_NUM_TOKENS, dtype=torch.int32)
        self.token_lens = torch.zeros(MAX_NUM_TOKENS, dtype=torch.int32)

    @property
    def name(self) -> str:
        """The build's own name."""
        return type(self).__qualname__

    @property
    def location(self) -> str:
        """Where it builds."""
        return source_of(self.build)

    @property
    def inputs(self) -> Mapping[str, torch.Tensor]:
        """The runner's buffers."""
        read = {f"input_buffers.{name}": it for name, it in _tensors(self.buffers)}
        read["block_tables.input_block_tables[0]"] = self.tables.input_block_tables[0]
        return read | {"block_tables.slot_mappings": self.tables.slot_mappings}

    @property
    def outputs(self) -> Mapping[str, torch.Tensor]:
        """Every tensor of the build itself."""
        return {f"builder.{name}": it for name, it in _tensors(self)}

    @property
    def rotating_inputs(self) -> Mapping[str, torch.Tensor]:
        """None."""
        return {}

    def stage(self, rows: StepRows) -> Callable[[], object]:
        """Write the step's inputs; returns its build."""
        runner = RunnerBuffers(
            self.buffers, self.tables, InputBatch, MAX_MODEL_LEN, num_blocks=400
        )
        return partial(self.build, write_step_inputs(runner, rows))

    def build(self, step: StepInputs) -> PlainMetadata:
        """Fill both buffers for the step's padded tokens."""
        batch = step.input_batch
        num_tokens = batch.num_tokens_after_padding
        reqs = self.requests_of_tokens(batch)
        self.token_to_req_indices[:num_tokens] = reqs
        self.token_lens[:num_tokens] = batch.seq_lens[reqs]
        return PlainMetadata(
            seq_lens=batch.seq_lens,
            token_to_req_indices=self.token_to_req_indices[:num_tokens],
            token_lens=self.token_lens[:num_tokens],
            num_reqs=batch.num_reqs,
        )

    def requests_of_tokens(self, batch: InputBatch) -> torch.Tensor:
        """[num_tokens_after_padding] request of each token; padding maps to 0."""
        tokens = torch.arange(batch.num_tokens_after_padding, device=DEVICE)
        reqs = torch.bucketize(tokens, batch.query_start_loc[1:].long(), right=True)
        return torch.where(tokens < batch.num_tokens, reqs, 0)


def emulated_recorder(build: GroupBuild) -> EmulatedRecorder:
    """A recorder of the build's memory."""
    memory = {**build.inputs, **build.outputs}
    pinned = getattr(build, "pinned_memory", ())
    are_pinned = {id(tensor) for tensor in pinned}
    device_memory = [it for it in memory.values() if id(it) not in are_pinned]
    return EmulatedRecorder(DEVICE, device_memory, pinned)


class FrozenHostLength(PlainBuild):
    """Takes the host's longest length for every token's."""

    def build(self, step: StepInputs) -> PlainMetadata:
        """Build soundly, then overwrite the lengths."""
        built = super().build(step)
        longest = int(step.input_batch.seq_lens_cpu_upper_bound.max())
        built.token_lens.fill_(longest)  # wrong
        return built


class DeviceRead(PlainBuild):
    """Asks the device how long the longest sequence is."""

    def build(self, step: StepInputs) -> PlainMetadata:
        """Build soundly, with a host field read from the device."""
        longest = step.input_batch.seq_lens.max().item()  # wrong
        return replace(super().build(step), max_seq_len=int(longest))


class PageableMask(PlainBuild):
    """Copies a mask that the host computes."""

    def build(self, step: StepInputs) -> PlainMetadata:
        """Build soundly, then mask the lengths."""
        built = super().build(step)
        batch = step.input_batch
        mask = torch.arange(built.token_lens.numel()) < batch.num_tokens
        built.token_lens.copy_(built.token_lens * mask.to(DEVICE))  # wrong
        return built


class FreshOutput(PlainBuild):
    """Returns a tensor that is new in every build, from the pool when captured."""

    def build(self, step: StepInputs) -> PlainMetadata:
        """Build soundly, then return a copy."""
        built = super().build(step)
        return replace(built, token_lens=built.token_lens.clone())  # wrong


class BuildCounter(PlainBuild):
    """Stamps a buffer with the number of builds so far."""

    def __init__(self) -> None:
        super().__init__()
        self.stamp = torch.zeros(1, dtype=torch.int32)
        self.num_builds = 0

    def build(self, step: StepInputs) -> PlainMetadata:
        """Count, and build soundly."""
        self.num_builds += 1
        self.stamp.fill_(self.num_builds)  # wrong
        return super().build(step)


class HostPlannedBranch(PlainBuild):
    """Leaves out what short sequences do not need, as the host knows them."""

    def build(self, step: StepInputs) -> PlainMetadata:
        """Cut lengths to a window, where the host thinks some exceed it."""
        built = super().build(step)
        if int(step.input_batch.seq_lens_cpu_upper_bound.max()) > BLOCK_SIZE:
            built.token_lens.clamp_(max=BLOCK_SIZE)  # wrong
        return built


class HostRequestIndices(PlainBuild):
    """Takes a shortcut, to the same result, if requests lie in order of state."""

    def requests_of_tokens(self, batch: InputBatch) -> torch.Tensor:
        """The map, by another operation for ordered requests."""
        reqs = super().requests_of_tokens(batch)
        indices = batch.idx_mapping_np.tolist()
        if indices == sorted(indices):
            return reqs.clone()  # wrong
        return reqs + 0


class BorrowedStaging(PlainBuild):
    """Copies from a staging buffer that others write too."""

    def __init__(self) -> None:
        super().__init__()
        self.pinned_memory = (torch.ones(MAX_NUM_TOKENS, dtype=torch.int32),)
        self.scale = torch.ones(MAX_NUM_TOKENS, dtype=torch.int32)

    def build(self, step: StepInputs) -> PlainMetadata:
        """Build soundly, and fetch a constant from the staging buffer."""
        self.scale.copy_(self.pinned_memory[0], non_blocking=True)  # wrong
        return super().build(step)


class StaleStaging(PlainBuild):
    """Fills its own staging buffer in the build, which no replay runs."""

    def __init__(self) -> None:
        super().__init__()
        self.staging = torch.zeros(MAX_NUM_REQS, dtype=torch.int32)
        self.uploaded = torch.zeros(MAX_NUM_REQS, dtype=torch.int32)
        self.pinned_memory = (self.staging,)

    def build(self, step: StepInputs) -> PlainMetadata:
        """Upload the host's lengths."""
        lens = step.input_batch.seq_lens_cpu_upper_bound
        self.staging[: len(lens)] = lens
        self.uploaded.copy_(self.staging, non_blocking=True)  # wrong
        return super().build(step)


class ClampedInput(PlainBuild):
    """Clamps the runner's positions by a host bound: not the same one on replay."""

    def build(self, step: StepInputs) -> PlainMetadata:
        """Build soundly, and tidy up what is not its own."""
        longest = int(step.input_batch.seq_lens_cpu_upper_bound.max())
        self.buffers.positions.clamp_(max=longest)  # wrong
        return replace(super().build(step), max_seq_len=longest)


class DoubleBuffered(PlainBuild):
    """Reads the one of two uploads that the last build's metadata leaves free."""

    def __init__(self) -> None:
        super().__init__()
        self._uploads = torch.ones((2, MAX_NUM_TOKENS), dtype=torch.int32)
        self._turn = 0
        self._last: Callable[[], PlainMetadata | None] = lambda: None

    @property
    def inputs(self) -> Mapping[str, torch.Tensor]:
        """The runner's buffers, and both uploads."""
        return {**super().inputs, "uploads": self._uploads}

    @property
    def outputs(self) -> Mapping[str, torch.Tensor]:
        """All tensors of the build but the uploads."""
        mine = super().outputs
        return {path: it for path, it in mine.items() if it is not self._uploads}

    def build(self, step: StepInputs) -> PlainMetadata:
        """Build soundly, and add an upload."""
        self._turn = 1 - self._turn if self._last() is not None else 0
        built = super().build(step)
        upload = self._uploads[self._turn][: built.token_lens.numel()]
        built.token_lens.add_(upload)  # wrong
        self._last = weakref.ref(built)
        return built


class UninitialisedScratch(PlainBuild):
    """Copies scratch of which it wrote the live rows only."""

    def build(self, step: StepInputs) -> PlainMetadata:
        """Build soundly, then take the lengths through scratch."""
        built = super().build(step)
        scratch = torch.empty_like(built.token_lens)
        num_tokens = step.input_batch.num_tokens
        scratch[:num_tokens] = built.token_lens[:num_tokens]
        built.token_lens.copy_(scratch)  # wrong
        return built


class FrozenHostField(PlainBuild):
    """Tells the kernels a host value of one batch, which is no bound."""

    def build(self, step: StepInputs) -> PlainMetadata:
        """Build soundly, with the first request's index for a count."""
        built = super().build(step)
        return replace(built, num_reqs=int(step.input_batch.idx_mapping_np[0]))


class MovingOutput(PlainBuild):
    """Returns another buffer for every second build; both are its own."""

    def __init__(self) -> None:
        super().__init__()
        self.twin_lens = torch.zeros(MAX_NUM_TOKENS, dtype=torch.int32)
        self._turn = 0

    def build(self, step: StepInputs) -> PlainMetadata:
        """Build soundly into both buffers, and return one."""
        built = super().build(step)
        num_tokens = built.token_lens.numel()
        self.twin_lens[:num_tokens] = built.token_lens  # wrong
        self._turn = 1 - self._turn
        returned = (self.token_lens, self.twin_lens)[self._turn]
        return replace(built, token_lens=returned[:num_tokens])


def _tensors(owner: object) -> list[tuple[str, torch.Tensor]]:
    return [
        (name, tensor)
        for name, tensor in vars(owner).items()
        if isinstance(tensor, torch.Tensor)
    ]
