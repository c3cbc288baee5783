"""A build that is one call within ``prepare_attn``, made a method of the state.

vLLM's ``MambaHybridModelState`` stages a step and builds its metadata in one function:
it gathers each request's accepted tokens through ``idx_mapping`` into a new tensor,
calls ``build_attn_metadata`` on it, and hands what that returns to
``recoverssm.record_step``. Recorded is the call alone. Its function stays the only
source of what is staged: it runs every step, with its own code, but in globals in which
the call's name leads to the state. No module is changed, so other states and threads
see nothing of it.

Invariant: a recording reads ``_num_accepted_tokens``, at one address, and every step
that it may serve has put its counts there before, those of padded rows included. An
eager build reads the tensors that vLLM gathered.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import FunctionType
from typing import Any, NamedTuple

import torch

from graphparity.fastpath.metadata_graphs import AttnMetadata, BuildFn
from graphparity.fastpath.seams import Seam
from graphparity.reference.attention import AttentionGroup, KVCacheConfig
from graphparity.reference.input_batch import InputBatch

_SPECIFIC = "model_specific_attn_metadata"
"""The argument of the call that holds the gathered counts."""


class StagedCall(NamedTuple):
    """The call of one step, as vLLM's ``prepare_attn`` would make it."""

    input_batch: InputBatch
    """The step that was staged."""
    arguments: dict[str, Any]


class HybridBuild:
    """Mixed in before a specialized state whose seam names an inner call."""

    _specialization: Any
    _full_mode: object
    num_accepted_tokens_gpu: torch.Tensor  # [max_num_reqs], int32, device

    def _allocate(self) -> None:
        # [max_num_reqs], int32, device; a batch row's, not a request's
        self._num_accepted_tokens = torch.ones_like(self.num_accepted_tokens_gpu)
        seam: Seam = self._specialization.seam
        stage: Any = seam.prepare_attn
        self._prepare_around = _calling(stage, seam.inner_call, self._build_or_replay)
        self._step: tuple[Any, ...] = ()

    def prepare_attn(
        self,
        input_batch: InputBatch,
        cudagraph_mode: object,
        block_tables: tuple[torch.Tensor, ...],
        slot_mappings: torch.Tensor,
        attn_groups: list[list[AttentionGroup]],
        kv_cache_config: KVCacheConfig,
        for_capture: bool = False,
        ubatch_idx: int = 0,
        **kwargs: Any,
    ) -> AttnMetadata:
        """As the base's, whose call of the build is replayed where it can be."""
        self._step = (
            input_batch,
            cudagraph_mode,
            block_tables,
            slot_mappings,
            attn_groups,
            kv_cache_config,
            for_capture,
            ubatch_idx,
        )
        try:
            built: AttnMetadata = self._prepare_around(self, *self._step, **kwargs)
        finally:
            self._step = ()  # no step's tensors outlive it here
        return built

    def _build_or_replay(self, **arguments: Any) -> AttnMetadata:
        """Stands where the base calls its build."""
        input_batch, cudagraph_mode, *_ = self._step
        if cudagraph_mode is self._full_mode:
            self._keep_counts(arguments)
        this: Any = self
        built: AttnMetadata = this._build_from_call(
            *self._step, call=StagedCall(input_batch, arguments)
        )
        return built

    def _keep_counts(self, arguments: dict[str, Any]) -> torch.Tensor | None:
        """Put the step's counts where a recording reads them; None if it has none."""
        gathered = arguments[_SPECIFIC].num_accepted_tokens
        if gathered is None:
            return None
        kept = self._num_accepted_tokens[: len(gathered)]
        kept.copy_(gathered)
        return kept

    def _build_eagerly(
        self,
        input_batch: InputBatch,
        cudagraph_mode: object,
        block_tables: tuple[torch.Tensor, ...],
        slot_mappings: torch.Tensor,
        attn_groups: list[list[AttentionGroup]],
        kv_cache_config: KVCacheConfig,
        *,
        call: StagedCall,
        **rest: Any,
    ) -> AttnMetadata:
        """The base's call, of the groups given; another batch is staged anew."""
        if input_batch is not call.input_batch:
            call = self._staged_call(
                input_batch,
                cudagraph_mode,
                block_tables,
                slot_mappings,
                attn_groups,
                kv_cache_config,
                **rest,
            )
        return self._build({**call.arguments, "attn_groups": attn_groups})

    def _build(self, arguments: dict[str, Any]) -> AttnMetadata:
        """Make the call, of the function that the base's module has now."""
        seam: Any = self._specialization.seam
        build = seam.prepare_attn.__globals__[seam.inner_call]
        built: AttnMetadata = build(**arguments)
        return built

    def _stage_build(self, input_batch: InputBatch, *step: Any) -> BuildFn:
        """Run what the base does before its call; returns the call, as recorded."""
        call = self._staged_call(input_batch, self._full_mode, *step)
        arguments, kept = call.arguments, self._keep_counts(call.arguments)
        if kept is not None:
            specific = replace(arguments[_SPECIFIC], num_accepted_tokens=kept)
            arguments = {**arguments, _SPECIFIC: specific}
        return partial(self._build, arguments)

    def _staged_call(
        self, input_batch: InputBatch, *step: Any, **rest: Any
    ) -> StagedCall:
        """The call that the base would make for a step, not made."""
        seam: Seam = self._specialization.seam
        calls: list[StagedCall] = []

        def keep(**arguments: Any) -> AttnMetadata:
            calls.append(StagedCall(input_batch, arguments))
            return _Unbuilt()

        _calling(seam.prepare_attn, seam.inner_call, keep)(
            self, input_batch, *step, **rest
        )
        if len(calls) != 1:
            raise TypeError(
                f"{type(self).__qualname__}.prepare_attn called {seam.inner_call} "
                f"{len(calls)} times for one step: a state fits this seam if it calls "
                "it once."
            )
        return calls[0]


class _Unbuilt(dict[str, Any]):
    """The metadata of a call that was not made: None for every layer, which
    ``record_step`` looks up.
    """

    def __missing__(self, layer_name: str) -> None:
        return None


def _calling(function: Any, name: str, replacement: Any) -> Callable[..., Any]:
    """``function``'s own code, in which the global ``name`` is ``replacement``."""
    made = FunctionType(
        function.__code__,
        {**function.__globals__, name: replacement},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made
