"""K14: an interface was split in halves, and somebody calls only one of them."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from graphparity.conformance.faults.fault import MAKING, Kind, Layer, fault
from graphparity.conformance.faults.patches import looked_up, replaced, served_as
from graphparity.conformance.subjects.torch_model_state import TorchModelState
from graphparity.fastpath.metadata_graphs import MetadataGraphs
from graphparity.fastpath.partial_build import PartlyRecorded


@fault(
    Kind.K14,
    "sglang#26740",
    check="decode steps",
    expected=r"compressor\.slot_mapping\[",
    layer=Layer.STATE,
)
def metadata_returned_without_a_launch() -> AbstractContextManager[Any]:
    """A step takes the captured metadata and does not launch what fills it."""

    def look_up(sound: Any, _: MetadataGraphs, key: Any) -> Any:
        recording = sound(key)
        return recording and recording._replace(launch=None)

    return looked_up(look_up)


@fault(
    Kind.K14,
    "sglang#26742",
    check="partly recorded",
    expected=r"compressor\.slot_mapping: absent, but should be present",
    layer=Layer.STATE,
)
def refused_groups_not_built() -> AbstractContextManager[Any]:
    """A step replays the recorded groups, and nobody builds the others."""

    def build(sound: Any, self: Any, replayed: Any, *step: Any, **rest: Any) -> Any:
        return replayed

    return replaced(PartlyRecorded, "_build_refused", build)


@fault(
    Kind.K14,
    "sglang#26019",
    check=MAKING,
    expected=r"TorchModelState lacks _build_attn_metadata: only a model state that",
    layer=Layer.STATE,
)
@contextmanager
def state_lacks_the_new_method() -> Iterator[None]:
    """A state's build was not split, so the half that is to be recorded is missing."""
    build = TorchModelState._build_attn_metadata
    del TorchModelState._build_attn_metadata
    try:
        yield
    finally:
        TorchModelState._build_attn_metadata = build  # type: ignore[method-assign]


@fault(
    Kind.K14,
    "sglang#26740",
    "sglang#26019",
    check="recordings",
    expected=r"captures: 0, but should be 8",
    layer=Layer.STATE,
)
def recording_half_never_called() -> AbstractContextManager[Any]:
    """Capturing the model's graphs does not record the metadata's."""

    def record(sound: Any, self: Any, *arguments: Any, **rest: Any) -> None:
        """Skip it."""

    return replaced(MetadataGraphs, "record", record)


@fault(
    Kind.K14,
    "sglang#26742",
    check="known history",
    expected=r"replays of a recording: 1, but should be 0",
    layer=Layer.STATE,
)
def capture_flag_not_handed_on() -> AbstractContextManager[Any]:
    """A runner's dummy step loses its ``for_capture`` on the way, and is served as a
    real one.
    """
    return served_as(lambda batch, for_capture: (batch, False))
