"""The call within ``prepare_attn`` is recorded; what is around it runs every step."""

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from graphparity.conformance.subjects.recorders import make_recorder
from graphparity.fastpath.graph_key import GraphKey
from graphparity.fastpath.seams import hybrid_prepare_attn
from graphparity.fastpath.specialize import Specialization, specialize
from graphparity.reference.input_batch import InputBatch, InputBuffers
from graphparity.reference.interface import CUDAGraphMode

KEY = GraphKey(2, 4, 4, 8)
DEVICE = torch.device("cpu:0")


@dataclass
class Specific:
    """What the state hands its build besides."""

    num_accepted_tokens: torch.Tensor | None


def build_attn_metadata(
    *, attn_groups: Any, model_specific_attn_metadata: Specific
) -> dict[str, Any]:
    """Copies the counts to the builder's buffer, as Mamba's builders do."""
    (builder,) = attn_groups
    counts = model_specific_attn_metadata.num_accepted_tokens
    if counts is None:
        return {"layer": None}
    builder.counts[: len(counts)].copy_(counts)
    return {"layer": SimpleNamespace(counts=builder.counts[: len(counts)])}


class Hybrid:
    """Gathers, builds, and keeps what was built, as vLLM's hybrid state does."""

    max_model_len = 64
    calls = 1

    def __init__(self) -> None:
        self.num_accepted_tokens_gpu = torch.arange(1, 9, dtype=torch.int32)
        self.counts = torch.zeros(8, dtype=torch.int32)
        self.kept: list[Any] = []
        one = SimpleNamespace(
            prefill_context_parallel_size=1, decode_context_parallel_size=1
        )
        self.vllm_config = SimpleNamespace(parallel_config=one)
        self.model_config = SimpleNamespace(rswa_window=None)

    def initialize_kv_cache(self, kv_cache_config: Any, block_tables: Any) -> None:
        """Nothing to adopt."""

    def capture_inner_cudagraphs(self, *arguments: Any) -> None:
        """Nothing to capture."""

    def prepare_attn(
        self,
        input_batch: Any,
        cudagraph_mode: Any,
        block_tables: Any,
        slot_mappings: Any,
        attn_groups: Any,
        kv_cache_config: Any,
        for_capture: bool = False,
        ubatch_idx: int = 0,
    ) -> dict[str, Any]:
        """Padded rows count one token."""
        gathered = torch.ones(input_batch.num_reqs_after_padding, dtype=torch.int32)
        live = self.num_accepted_tokens_gpu[input_batch.idx_mapping]
        gathered[: input_batch.num_reqs] = live
        built: dict[str, Any] = {}
        for _ in range(self.calls):
            built = build_attn_metadata(
                attn_groups=attn_groups,
                model_specific_attn_metadata=Specific(gathered),
            )
        self.kept.append(built["layer"])
        return built


State = Any
"""A specialized ``Hybrid``."""


@pytest.fixture
def state() -> State:
    """A recorded one."""
    made = _specialized(Hybrid)()
    _record(made)
    return made


def test_a_replay_reads_the_counts_of_its_own_step(state: State) -> None:
    """Live rows through ``idx_mapping``, 1 in the padded ones."""
    for rows in ([3, 1], [0, 7]):
        state.counts.fill_(-1)
        built = _run(state, rows)
        assert built["layer"].counts.tolist() == [rows[0] + 1, rows[1] + 1, 1, 1]
    assert state.graphs.num_replayed == 2


def test_what_follows_the_call_sees_the_replayed_metadata(state: State) -> None:
    """As ``record_step`` does."""
    state.kept.clear()
    built = _run(state, [3, 1])
    assert state.kept == [built["layer"]]
    assert built is state.graphs.recordings[KEY].attn_metadata


def test_staging_has_metadata_of_no_layer(state: State) -> None:
    """Recording stages twice without a build, which what follows it must bear."""
    assert state.kept == [None, None]


def test_an_eager_step_is_the_base_s(state: State) -> None:
    """Its build reads what the base gathered, not what a recording reads."""
    state._num_accepted_tokens.fill_(-1)
    built = _run(state, [3, 1], CUDAGraphMode.NONE)
    assert built["layer"].counts.tolist() == [4, 2, 1, 1]
    assert state._num_accepted_tokens.tolist() == [-1] * 8


def test_another_batch_is_staged_anew(state: State) -> None:
    """Mode verify builds a step with other host bounds than it was staged with."""
    batch = _batch([3, 1])
    call = state._staged_call(batch, CUDAGraphMode.FULL, *_rest(state))
    step = (CUDAGraphMode.FULL, *_rest(state))
    again = replace(batch, idx_mapping=torch.tensor([5, 6]))
    assert state._build_eagerly(batch, *step, call=call)["layer"].counts[0] == 4
    assert state._build_eagerly(again, *step, call=call)["layer"].counts[0] == 6


def test_other_states_see_nothing_of_it(state: State) -> None:
    """No module is changed: an unspecialized state of the process builds by itself."""
    plain = Hybrid()
    _run(state, [3, 1])
    assert _run(plain, [3, 1])["layer"].counts.data_ptr() == plain.counts.data_ptr()


def test_no_step_is_kept(state: State) -> None:
    """Its tensors do not outlive it, not even if it fails."""
    with pytest.raises(AttributeError):
        state.prepare_attn(None, CUDAGraphMode.FULL, *_rest(state))
    assert state._step == ()


def test_a_base_that_calls_twice_is_refused() -> None:
    """The seam takes one call for the build."""

    class Twice(Hybrid):
        """Builds two times a step."""

        calls = 2

    with pytest.raises(TypeError, match="called build_attn_metadata 2 times for one"):
        _record(_specialized(Twice)())


def test_a_base_without_the_call_is_refused() -> None:
    """Its code is looked at, not its name."""

    class Without(Hybrid):
        """Builds by something else."""

        def prepare_attn(self, *step: Any, **kwargs: Any) -> dict[str, Any]:
            """No call."""
            return {}

    with pytest.raises(TypeError, match="Without lacks a call of build_attn_metadata"):
        _specialized(Without)


def test_what_a_key_does_not_fix_is_refused() -> None:
    """As of the default state, but for multimodal ranges, which hybrids ignore."""

    class Windowed(Hybrid):
        """Gathers prompt lengths as well."""

        def __init__(self) -> None:
            super().__init__()
            self.model_config = SimpleNamespace(rswa_window=64)

    with pytest.raises(ValueError, match="no reference sliding window"):
        _specialized(Windowed)()


def _specialized(base: type[Any]) -> type[Any]:
    def recorder_of(state: State) -> Any:
        members = {n: it for n, it in vars(state).items() if torch.is_tensor(it)}
        return make_recorder("emulated", members)

    specialization = Specialization(
        full_mode=CUDAGraphMode.FULL,
        make_recorder=recorder_of,
        graph_keys=lambda state: [KEY],
        seam=hybrid_prepare_attn(base),
    )
    return specialize(base, specialization)


def _record(state: State) -> None:
    tables = SimpleNamespace(
        get_dummy_block_tables=lambda num_reqs: (),
        get_dummy_slot_mappings=lambda num_tokens: None,
    )
    state.capture_inner_cudagraphs(InputBuffers(8, 16, DEVICE), tables, [state], None)


def _rest(state: State) -> tuple[Any, ...]:
    """Tables, slots, groups and KV-cache configuration of a step."""
    return (), None, [state], None


def _batch(rows: list[int]) -> InputBatch:
    batch = InputBatch.make_dummy(
        KEY.num_reqs, KEY.num_tokens, InputBuffers(8, 16, DEVICE)
    )
    return replace(
        batch,
        idx_mapping=torch.tensor(rows),
        num_reqs_after_padding=KEY.num_reqs_after_padding,
        num_tokens_after_padding=KEY.num_tokens_after_padding,
        has_prefill=False,
    )


def _run(state: State, rows: list[int], mode: Any = CUDAGraphMode.FULL) -> Any:
    return state.prepare_attn(_batch(rows), mode, *_rest(state))
