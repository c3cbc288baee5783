"""K9: a capture meets work that it cannot record, or that was to be done before it.

What synchronizes or copies pageable memory is refused by both recorders, so the fault
shows as a key that is not recorded; the lines here are the emulated recorder's, which
name the operation. Compilation in a
capture does not exist on a CPU; what it leaves behind, a table that one capture alone
fills, does.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from graphparity.conformance.faults.fault import Kind, Layer, fault
from graphparity.conformance.faults.patches import replaced, while_capturing
from graphparity.conformance.subjects.torch_builders import (
    TorchCompressorBuilder,
    TorchSlidingWindowBuilder,
)

REFUSED = r"GraphKey\(.*\): refused \({} at \S*capture_work\.py:\d+ cannot be recorded"


@fault(
    Kind.K9,
    "triton#10596",
    check="recordings",
    expected=REFUSED.format(r"Tensor\.item"),
    layer=Layer.EMULATED,
)
def device_value_read_within_a_capture() -> AbstractContextManager[Any]:
    """A path that the warm-up does not take asks the device for the longest length,
    as autotuning does that synchronizes.
    """

    def build(sound: Any, self: Any, batch: Any, *rest: Any) -> Any:
        batch.seq_lens.max().item()
        return sound(self, batch, *rest)

    return while_capturing(TorchCompressorBuilder, "build", build)


@fault(
    Kind.K9,
    "pytorch#172156",
    "pytorch#171894",
    check="recordings",
    expected=REFUSED.format(r"torch\.tensor"),
    layer=Layer.EMULATED,
)
def host_list_copied_within_a_capture() -> AbstractContextManager[Any]:
    """A build makes a device tensor of a host list, a copy of pageable memory."""

    def build(sound: Any, self: Any, batch: Any, *rest: Any) -> Any:
        torch.tensor([batch.num_reqs], device=batch.seq_lens.device)
        return sound(self, batch, *rest)

    return while_capturing(TorchCompressorBuilder, "build", build)


@fault(
    Kind.K9,
    "candle#3352",
    check="recordings",
    expected=REFUSED.format(r"aten\.copy_\.default"),
    layer=Layer.EMULATED,
)
def copy_from_a_temporary_recorded() -> AbstractContextManager[Any]:
    """A build copies from pinned memory that it allocated, which is freed before any
    replay.
    """

    def build(sound: Any, self: Any, batch: Any, *rest: Any) -> Any:
        lengths = torch.zeros(batch.num_reqs, dtype=torch.int32, pin_memory=True)
        batch.seq_lens[: batch.num_reqs].copy_(lengths, non_blocking=True)
        return sound(self, batch, *rest)

    return while_capturing(TorchCompressorBuilder, "build", build)


@fault(
    Kind.K9,
    "vllm#39483",
    "vllm#36587",
    check="decode steps",
    expected=r"builders\.sliding_window\.window_range: written, but should be left",
)
@contextmanager
def table_filled_within_the_first_capture() -> Iterator[None]:
    """The warm-up takes another path than the capture, so the first capture records
    what was to happen once, and all others lack it.
    """

    def init(sound: Any, self: Any, *arguments: Any) -> None:
        sound(self, *arguments)
        self.window_range.zero_()

    def fill(sound: Any, self: Any, *arguments: Any) -> None:
        if not getattr(self, "has_table", False):
            self.has_table = True
            self.window_range.copy_(self.token_range[: self.window])
        sound(self, *arguments)

    with (
        replaced(TorchSlidingWindowBuilder, "__init__", init),
        while_capturing(TorchSlidingWindowBuilder, "_fill_windows", fill),
    ):
        yield


@fault(
    Kind.K9,
    "sglang#35427",
    "vllm#48526",
    check="recordings",
    expected=REFUSED.format(r"aten\.add\.Tensor"),
    layer=Layer.EMULATED,
)
def scratch_allocated_outside_the_pool() -> AbstractContextManager[Any]:
    """The first build allocates scratch that nobody declared, and captures use it: its
    owner may free it while the graphs live.
    """
    scratch = torch.zeros(64, dtype=torch.int32)

    def build(sound: Any, self: Any, batch: Any, *rest: Any) -> Any:
        torch.add(batch.seq_lens, scratch[: len(batch.seq_lens)])
        return sound(self, batch, *rest)

    return while_capturing(TorchCompressorBuilder, "build", build)
