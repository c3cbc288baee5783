"""What only the runner knows, lent to the model state while the runner captures.

``capture_inner_cudagraphs`` is called without the runner, but the keys are the image
of the runner's own ``dispatch`` and the prover stages steps in the runner's buffers.
``GPUModelRunner.capture_model`` is the one place that has both and that every capture
goes through, that of memory profiling too; so it is wrapped, once a process, when a
state is first plugged in. Without a plugged-in state it does what it did.
"""

import functools
from typing import Any, NamedTuple

from graphparity.fastpath.graph_key import (
    BatchExecutionDescriptor,
    GraphKey,
    keys_padded_for_other_ranks,
    keys_to_record,
)

_LINKED = "_graphparity_links_runner"


def link_runner() -> None:
    """Wrap ``GPUModelRunner.capture_model``; idempotent."""
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner  # noqa: PLC0415

    capture_model = GPUModelRunner.capture_model
    if hasattr(capture_model, _LINKED):
        return

    @functools.wraps(capture_model)
    def linked(self: Any, *args: Any, **kwargs: Any) -> Any:
        plugged = getattr(self.model_state, "plugged", None)
        if plugged is None:
            return capture_model(self, *args, **kwargs)
        is_profile = bool(kwargs.get("profile_only", False))
        with plugged.capture_of(self, is_profile=is_profile):
            return capture_model(self, *args, **kwargs)

    setattr(linked, _LINKED, True)
    GPUModelRunner.capture_model = linked


class RunnerKeys(NamedTuple):
    """The keys that a runner will ask for, each part largest first."""

    own: tuple[GraphKey, ...]
    """Of every decode step that dispatch serves by a FULL graph."""
    padded_for_other_ranks: tuple[GraphKey, ...] = ()
    """What data parallelism adds."""


def runner_keys(runner: Any) -> RunnerKeys:
    """The keys of a capturing runner.

    Dispatch is asked once for each number of LoRA adapters that it has graphs for:
    they change no metadata, so their keys are the same or more.
    """
    from vllm.config.compilation import CUDAGraphMode  # noqa: PLC0415

    graphs = runner.cudagraph_manager
    own: set[GraphKey] = set()
    padded: set[GraphKey] = set()
    for num_active_loras in getattr(graphs, "lora_capture_cases", None) or (0,):
        dispatch = DispatchWithLoras(graphs, num_active_loras)
        keys = keys_to_record(
            dispatch,
            max_num_reqs=runner.max_num_reqs,
            query_lens=range(1, runner.decode_query_len + 1),
            full_mode=CUDAGraphMode.FULL,
        )
        own |= set(keys)
        if runner.dp_size > 1:
            padded |= set(
                keys_padded_for_other_ranks(keys, dispatch, CUDAGraphMode.FULL)
            )
    return RunnerKeys(_largest_first(own), _largest_first(padded - own))


def _largest_first(keys: set[GraphKey]) -> tuple[GraphKey, ...]:
    return tuple(sorted(keys, key=lambda key: key[::-1], reverse=True))


class DispatchWithLoras:
    """A runner's dispatch of steps that use a given number of LoRA adapters."""

    def __init__(self, graphs: Any, num_active_loras: int) -> None:
        self._graphs, self._num_active_loras = graphs, num_active_loras

    def __call__(
        self,
        num_reqs: int,
        num_tokens: int,
        uniform_token_count: int | None,
        num_active_loras: int,
    ) -> BatchExecutionDescriptor:
        """Choose the graph of a step; the number asked with is replaced."""
        del num_active_loras
        answer: BatchExecutionDescriptor = self._graphs.dispatch(
            num_reqs, num_tokens, uniform_token_count, self._num_active_loras
        )
        return answer
