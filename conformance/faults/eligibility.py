"""K6: a step is sent to a recording that may not serve it, or misses its own."""

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from graphparity.conformance.faults.fault import MAKING, Kind, Layer, fault
from graphparity.conformance.faults.patches import (
    SPECIALIZE,
    looked_up,
    replaced,
    served_as,
)
from graphparity.conformance.subjects import torch_decode
from graphparity.fastpath.graph_key import GraphKey
from graphparity.fastpath.metadata_graphs import MetadataGraphs

REPLAYED = r"replays of a recording: 1, but should be 0"


@fault(
    Kind.K6,
    "vllm#53051",
    "vllm#53059",
    check="known history",
    expected=REPLAYED,
    layer=Layer.STATE,
)
def prompt_chunks_shaped_like_a_decode_replayed() -> AbstractContextManager[Any]:
    """Chunks of the decode query length are served by a recording of decode steps."""

    def seen(batch: Any, for_capture: bool) -> tuple[Any, bool]:
        return replace(batch, has_prefill=False), for_capture

    return served_as(seen)


@fault(
    Kind.K6,
    "vllm#50532",
    "vllm#51865",
    check="known history",
    expected=REPLAYED,
    layer=Layer.STATE,
)
def later_prompt_chunks_replayed() -> AbstractContextManager[Any]:
    """Only a prompt's first chunk is told from a decode: with computed tokens, a chunk
    of the decode query length counts as one.
    """

    def seen(batch: Any, for_capture: bool) -> tuple[Any, bool]:
        is_first = bool((batch.num_computed_tokens_np == 0).any())
        has_prefill = batch.has_prefill and is_first
        return replace(batch, has_prefill=has_prefill), for_capture

    return served_as(seen)


@fault(
    Kind.K6,
    "vllm#28207",
    "vllm#28015",
    check=MAKING,
    expected=r"num_tokens_after_padding 2 is not num_reqs_after_padding 1 times the",
    layer=Layer.STATE,
    subject="torch-decode:3",
)
def capture_sizes_not_in_whole_requests() -> AbstractContextManager[Any]:
    """Dispatch answers with the capture size itself, on which requests of three tokens
    do not end.
    """

    def dispatch(sound: Any, *step: Any, **bounds: Any) -> Any:
        answer = sound(*step, **bounds)
        sizes = [it for it in torch_decode.CAPTURE_SIZES if it <= answer.num_tokens]
        return replace(answer, num_tokens=sizes[-1])

    return replaced(torch_decode, "dispatch", dispatch)


@fault(
    Kind.K6,
    "vllm#36165",
    check="decode steps",
    expected=r"replays of a recording: 0, but should be 1",
    layer=Layer.STATE,
)
def recordings_looked_up_by_padded_requests() -> AbstractContextManager[Any]:
    """A recording is filed under the real requests, and looked up under those after
    padding: no padded step finds its own.
    """

    def look_up(sound: Any, _: MetadataGraphs, key: Any) -> Any:
        return sound((key[1], *key[1:]))

    return looked_up(look_up)


@fault(
    Kind.K6,
    "ascend#7460",
    "ascend#14394",
    check="decode steps",
    expected=r"sliding_window\.num_decodes: \d, but should be \d",
    layer=Layer.STATE,
)
def padded_requests_reset_to_the_real_ones() -> AbstractContextManager[Any]:
    """The dummy batch of a recording is padded in tokens, but not in requests."""

    def padded(sound: Any, key: GraphKey, *rest: Any) -> Any:
        return replace(sound(key, *rest), num_reqs_after_padding=key.num_reqs)

    return replaced(SPECIALIZE, "padded_decode_batch", padded)


@fault(
    Kind.K6,
    "nano-vllm-v1#3",
    check="histories",
    expected=REPLAYED,
    layer=Layer.STATE,
)
def steps_of_bounded_lengths_replayed() -> AbstractContextManager[Any]:
    """A step that only bounds its query lengths is taken for a uniform one."""

    def seen(batch: Any, for_capture: bool) -> tuple[Any, bool]:
        return replace(batch, max_query_len=None), for_capture

    return served_as(seen)


@fault(
    Kind.K6,
    "vllm#36165",
    "vllm#39945",
    check="graph keys",
    expected=r"GraphKey\(num_reqs=3, .*\): missing, but should be recorded",
    layer=Layer.STATE,
)
def only_full_rungs_recorded() -> AbstractContextManager[Any]:
    """Keys are made of the capture sizes, so steps that are padded have none."""

    def keys(sound: Any, *arguments: Any, **rest: Any) -> Any:
        return tuple(it for it in sound(*arguments, **rest) if it[0] == it[1])

    return replaced(torch_decode, "keys_to_record", keys)
