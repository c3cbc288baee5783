"""A builder that allocates its own memory inside a capture is refused, and mended."""

from types import SimpleNamespace

import pytest
import torch

from graphparity.fastpath.recorders import CaptureError, EmulatedRecorder
from graphparity.fastpath.vllm_plugin.first_allocations import FirstAllocationsRefused

DEVICE = torch.device("cpu:0")


class Builder:
    """Copies two lengths by way of a scratch buffer."""

    kv_cache_spec = None

    def __init__(self) -> None:
        self.lens = torch.tensor([5, 6])
        self.own = torch.zeros(2, dtype=torch.int64)
        self.scratch: torch.Tensor | None = None

    def build(self) -> torch.Tensor:
        """The lengths, in memory of the builder."""
        if self.must_allocate():
            self.scratch = torch.ones(2, dtype=torch.int64, device=DEVICE)
        if self.scratch is not None:
            self.scratch.copy_(self.lens)
        self.own.copy_(self.lens)
        return self.own

    def must_allocate(self) -> bool:
        """In the first build, whatever runs it."""
        return self.scratch is None


class LateScratch(Builder):
    """Allocates in the first capture alone."""

    def must_allocate(self) -> bool:
        """While something captures."""
        return self.scratch is None and EmulatedRecorder._session is not None


class ByNumReqs(Builder):
    """Keeps a buffer in a dictionary, in captures alone."""

    def __init__(self) -> None:
        super().__init__()
        self.by_num_reqs: dict[int, torch.Tensor] = {}

    def must_allocate(self) -> bool:
        """Never its scratch."""
        if EmulatedRecorder._session is not None:
            buffer = torch.zeros(2, dtype=torch.int64, device=DEVICE)
            self.by_num_reqs = {**self.by_num_reqs, 2: buffer}
        return False


class ReadsTheHostLater(LateScratch):
    """Is refused for something else after it allocated."""

    def build(self) -> torch.Tensor:
        """The lengths, of which the host reads one."""
        built = super().build()
        built[0].item()
        return built


def _recorder(builder: Builder) -> FirstAllocationsRefused:
    group = SimpleNamespace(
        layer_names=["layers.0"], get_metadata_builder=lambda: builder
    )
    runner = SimpleNamespace(attn_groups=[[], [group]], device=torch.device("cpu"))
    memory = [it for it in vars(builder).values() if isinstance(it, torch.Tensor)]
    recorder = EmulatedRecorder(DEVICE, memory)
    return FirstAllocationsRefused(recorder, runner)


def test_memory_of_a_warm_up_is_the_builder_s_own() -> None:
    """It was there before the capture."""
    builder = Builder()
    _recorder(builder).warm_up(builder.build)
    scratch, recorder = builder.scratch, _recorder(builder)
    graph, built = recorder.capture(builder.build)
    assert built is builder.own
    assert graph.num_nodes == 2
    assert builder.scratch is scratch


@pytest.mark.parametrize(
    ("builder_cls", "path"),
    [
        (LateScratch, "builders.layers.0.scratch"),
        (ByNumReqs, "builders.layers.0.by_num_reqs[2]"),
    ],
)
def test_a_first_allocation_is_refused_by_its_name(
    builder_cls: type[Builder], path: str
) -> None:
    """With the builder's line; the builder is as before, and builds again."""
    builder = builder_cls()
    recorder = _recorder(builder)
    recorder.warm_up(builder.build)
    with pytest.raises(CaptureError, match="allocates it for the first time") as caught:
        recorder.capture(builder.build)
    assert caught.value.operation == path
    assert caught.value.location.startswith(f"{__file__}:")
    assert builder.scratch is None
    assert getattr(builder, "by_num_reqs", {}) == {}
    assert builder.build().tolist() == [5, 6]


def test_a_builder_that_is_refused_otherwise_is_left_as_it_was() -> None:
    """What it allocated before is no memory for eager builds."""
    builder = ReadsTheHostLater()
    with pytest.raises(CaptureError, match=r"Tensor\.item"):
        _recorder(builder).capture(builder.build)
    assert builder.scratch is None
