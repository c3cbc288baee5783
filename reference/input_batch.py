"""The batch of one step and the persistent buffers its tensors are views of.

Place: what the runner hands to ``ModelState.prepare_inputs`` and
``prepare_attn``. From vLLM's ``v1/worker/gpu/input_batch.py``.
Invariant: ``InputBatch`` has vLLM's fields, in vLLM's order, with vLLM's
defaults; a contract test holds that. Suffix ``_np`` is a host array,
``_after_padding`` a count rounded up to a captured size, ``_cpu_upper_bound`` a
host bound on a device value; every other tensor lies on the device.
"""

import dataclasses

import numpy as np
import numpy.typing as npt
import torch


class InputBuffers:
    """Persistent device buffers of the runner, zero at start.

    ``input_ids`` int32, ``positions`` int64 and ``is_padding`` bool are
    ``[max_num_tokens]``; ``query_start_loc`` int32 is ``[max_num_reqs + 1]``;
    ``seq_lens`` and ``dcp_local_seq_lens`` int32 are ``[max_num_reqs]``.
    """

    def __init__(
        self, max_num_reqs: int, max_num_tokens: int, device: torch.device
    ) -> None:
        self.max_num_reqs = max_num_reqs
        self.max_num_tokens = max_num_tokens
        self.device = device

        def zeros(size: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros(size, dtype=dtype, device=device)

        self.input_ids = zeros(max_num_tokens, torch.int32)
        self.positions = zeros(max_num_tokens, torch.int64)
        self.is_padding = zeros(max_num_tokens, torch.bool)
        self.query_start_loc = zeros(max_num_reqs + 1, torch.int32)
        self.seq_lens = zeros(max_num_reqs, torch.int32)
        self.dcp_local_seq_lens = zeros(max_num_reqs, torch.int32)


@dataclasses.dataclass
class InputBatch:
    """One step's batch; row ``i`` is the ``i``-th request of the batch."""

    req_ids: list[str]
    num_reqs: int
    num_reqs_after_padding: int

    # [num_reqs] batch row -> request state index, int64 and host intp
    idx_mapping: torch.Tensor
    idx_mapping_np: npt.NDArray[np.intp]
    # [total_num_logits] row and position of each logit
    expanded_idx_mapping: torch.Tensor
    expanded_local_pos: torch.Tensor

    # [num_reqs] host
    num_scheduled_tokens: npt.NDArray[np.int32]
    num_tokens: int
    num_tokens_after_padding: int
    num_draft_tokens: int
    # [num_reqs] host
    num_draft_tokens_per_req: npt.NDArray[np.int32] | None

    # [num_reqs_after_padding + 1] padded requests start at num_tokens
    query_start_loc: torch.Tensor
    query_start_loc_np: npt.NDArray[np.int32]
    # [num_reqs_after_padding] int32
    seq_lens: torch.Tensor
    # [num_reqs_after_padding] host, 0 in the padded rows
    seq_lens_cpu_upper_bound: torch.Tensor
    # [num_reqs] int32
    dcp_local_seq_lens: torch.Tensor | None
    # [num_reqs] host
    num_computed_tokens_np: npt.NDArray[np.int32]
    prefill_len_np: npt.NDArray[np.int32]
    num_computed_prefill_tokens_np: npt.NDArray[np.int32]
    is_prefilling_np: npt.NDArray[np.bool_]
    has_prefill: bool
    decode_graph_eligible: bool

    # [num_tokens_after_padding] int32, int64 and bool
    input_ids: torch.Tensor
    positions: torch.Tensor
    is_padding: torch.Tensor

    # [total_num_logits] token of each logit
    logits_indices: torch.Tensor
    # [num_reqs + 1] int32
    cu_num_logits: torch.Tensor
    cu_num_logits_np: npt.NDArray[np.int32]

    has_structured_output_reqs: bool

    # [num_reqs] only with reference sliding-window attention
    prompt_lens: torch.Tensor | None

    # Features outside the reference: present so that the fields match vLLM's.
    max_seq_len_np: npt.NDArray[np.int32] | None = None
    max_query_len: int | None = None
    fast_prefill: object | None = None
    pcp: object | None = None
    # [num_reqs] prefill rows that run as decodes
    prefill_runs_as_decode_np: npt.NDArray[np.bool_] | None = None
    num_admitted_draft_tokens: object | None = None

    @classmethod
    def make_dummy(
        cls,
        num_reqs: int,
        num_tokens: int,
        input_buffers: InputBuffers,
        max_query_len: int | None = None,
        is_padding: bool = True,
    ) -> "InputBatch":
        """A dummy batch whose sequence lengths equal its query lengths.

        Writes ``input_buffers`` in place, as vLLM's ``make_dummy`` does: whole
        ``seq_lens`` and ``query_start_loc``, the first ``num_tokens`` of the
        rest. The remainder of ``num_tokens / num_reqs`` goes to the last rows.

        Raises:
            ValueError: ``num_reqs`` is not in ``1..num_tokens``, or a query is
                longer than ``max_query_len``.
        """
        query_lens = _dummy_query_lens(num_reqs, num_tokens, max_query_len)
        starts = [sum(query_lens[:row]) for row in range(num_reqs + 1)]
        device = input_buffers.device
        _write(input_buffers.seq_lens, query_lens, fill=0)
        _write(input_buffers.query_start_loc, starts, fill=num_tokens)
        input_buffers.input_ids[:num_tokens] = 0
        input_buffers.positions[:num_tokens] = 0
        input_buffers.is_padding[:num_tokens] = is_padding
        query_start_loc = input_buffers.query_start_loc[: num_reqs + 1]
        idx_mapping = torch.arange(num_reqs, dtype=torch.int64, device=device)
        no_tokens = np.zeros(num_reqs, dtype=np.int32)
        return cls(
            req_ids=[f"req_{row}" for row in range(num_reqs)],
            num_reqs=num_reqs,
            num_reqs_after_padding=num_reqs,
            idx_mapping=idx_mapping,
            idx_mapping_np=np.arange(num_reqs, dtype=np.intp),
            expanded_idx_mapping=idx_mapping,
            expanded_local_pos=torch.zeros(num_reqs, dtype=torch.int32, device=device),
            num_scheduled_tokens=np.array(query_lens, dtype=np.int32),
            num_tokens=num_tokens,
            num_tokens_after_padding=num_tokens,
            num_draft_tokens=0,
            num_draft_tokens_per_req=None,
            query_start_loc=query_start_loc,
            query_start_loc_np=np.array(starts, dtype=np.int32),
            seq_lens=input_buffers.seq_lens[:num_reqs],
            seq_lens_cpu_upper_bound=torch.tensor(query_lens, dtype=torch.int32),
            dcp_local_seq_lens=None,
            num_computed_tokens_np=no_tokens,
            prefill_len_np=no_tokens.copy(),
            num_computed_prefill_tokens_np=no_tokens.copy(),
            is_prefilling_np=np.zeros(num_reqs, dtype=np.bool_),
            has_prefill=False,
            decode_graph_eligible=True,
            input_ids=input_buffers.input_ids[:num_tokens],
            positions=input_buffers.positions[:num_tokens],
            is_padding=input_buffers.is_padding[:num_tokens],
            logits_indices=query_start_loc[1:] - 1,
            cu_num_logits=torch.arange(num_reqs + 1, dtype=torch.int32, device=device),
            cu_num_logits_np=np.arange(num_reqs + 1, dtype=np.int32),
            has_structured_output_reqs=False,
            prompt_lens=None,
            max_query_len=max_query_len,
        )


def _dummy_query_lens(
    num_reqs: int, num_tokens: int, max_query_len: int | None
) -> list[int]:
    if not 0 < num_reqs <= num_tokens:
        raise ValueError(
            f"num_reqs={num_reqs} must be in 1..num_tokens={num_tokens}: "
            "give every dummy request at least one token."
        )
    base, extra = divmod(num_tokens, num_reqs)
    query_lens = [base] * (num_reqs - extra) + [base + 1] * extra
    if max_query_len is not None and query_lens[-1] > max_query_len:
        raise ValueError(
            f"max_query_len={max_query_len} is below the dummy query length "
            f"{query_lens[-1]}: raise it or lower num_tokens={num_tokens}."
        )
    return query_lens


def _write(buffer: torch.Tensor, values: list[int], fill: int) -> None:
    buffer[: len(values)] = torch.tensor(values, dtype=buffer.dtype)
    buffer[len(values) :] = fill
