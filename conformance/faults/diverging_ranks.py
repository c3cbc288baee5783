"""K12: ranks that must act alike decide by what each sees alone.

Two ranks are simulated in one process; as in a launcher's, ``RANK`` in the environment
says which one a subject is made for.
"""

import os
from contextlib import AbstractContextManager
from typing import Any

from graphparity.conformance.faults.fault import Kind, Layer, fault
from graphparity.conformance.faults.patches import looked_up, replaced, while_capturing
from graphparity.conformance.subjects import torch_decode
from graphparity.conformance.subjects.torch_builders import TorchCompressorBuilder
from graphparity.fastpath.metadata_graphs import MetadataGraphs


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))


@fault(
    Kind.K12,
    "vllm#25906",
    check="ranks",
    expected=r"replays of a recording: 1, but should be 0",
    layer=Layer.STATE,
)
def recording_chosen_by_local_tokens() -> AbstractContextManager[Any]:
    """A step that was padded for a larger rank is served by the recording of the
    padding that it would have had alone.
    """

    def look_up(sound: Any, graphs: MetadataGraphs, key: Any) -> Any:
        local = [it for it in graphs.recordings if it.num_reqs == key[0]]
        return sound(local[0] if local else key)

    return looked_up(look_up)


@fault(
    Kind.K12,
    "pegainfer#496",
    check="ranks",
    expected=r"recording \d+: GraphKey\(.*\) on rank 1, but should be GraphKey\(",
    layer=Layer.STATE,
)
def ranks_record_in_different_orders() -> AbstractContextManager[Any]:
    """Keys are recorded in an order of each rank's own."""

    def keys(sound: Any, *arguments: Any, **rest: Any) -> Any:
        return sound(*arguments, **rest)[:: 1 - 2 * _rank()]

    return replaced(torch_decode, "keys_to_record", keys)


@fault(
    Kind.K12,
    "sglang#31195",
    check="ranks",
    expected=r"recordings: 7 on rank 1, but should be 8",
    layer=Layer.STATE,
)
def a_rank_lacks_the_largest_recording() -> AbstractContextManager[Any]:
    """Each rank records what its own free memory allows."""

    def record(sound: Any, self: Any, recorded_as: Any, *rest: Any, **more: Any) -> Any:
        fitting = dict([*recorded_as.items()][_rank() :])
        return sound(self, fitting, *rest, **more)

    return replaced(MetadataGraphs, "record", record)


@fault(
    Kind.K12,
    "sglang#31195",
    "vllm#25906",
    check="ranks",
    expected=r"GraphKey\(.*\): recorded otherwise on rank 1, but should be as on",
)
def a_rank_records_another_branch() -> AbstractContextManager[Any]:
    """The build takes a branch of its own on every rank but the first."""

    def build(sound: Any, *arguments: Any) -> Any:
        built = sound(*arguments)
        if _rank():
            built.slot_mapping.clamp_(min=-1)
        return built

    return while_capturing(TorchCompressorBuilder, "build", build)
