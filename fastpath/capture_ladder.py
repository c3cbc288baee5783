"""vLLM's choice of a graph for a step, worked out from the capture sizes alone.

An engine's own ``CudaGraphManager.dispatch`` is what the fast path asks when it records
and serves; this is the same rule where there is no engine: for planning a ladder, and
for subjects that need no vLLM. From ``_init_candidates`` and ``dispatch`` in vLLM's
``v1/worker/gpu/cudagraph_utils.py``, for steps without LoRA and without micro-batches.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from graphparity.reference.interface import CUDAGraphMode


@dataclass(frozen=True)
class Descriptor:
    """What the ladder answers for a step."""

    cg_mode: CUDAGraphMode
    num_tokens: int
    num_reqs: int | None
    uniform_token_count: int | None


@dataclass(frozen=True)
class CaptureLadder:
    """The graphs that an engine captures, and which of them serves a step.

    A FULL graph of decodes is a capture size rounded up to whole requests; one that
    then exceeds the largest capture size, or holds more requests than there can be, is
    not captured. Mixed graphs, which serve any step, have the sizes as given.

    Raises:
        ValueError: there is no capture size, or one is no positive number, or
            ``max_num_reqs`` is not.
    """

    capture_sizes: tuple[int, ...]
    """Tokens after padding (``cudagraph_capture_sizes``), in any order."""
    max_num_reqs: int
    """The most requests a step holds (``max_num_seqs``)."""
    mixed_mode: CUDAGraphMode = CUDAGraphMode.NONE
    """How a step runs that no FULL graph serves: PIECEWISE up to the largest capture
    size under FULL_AND_PIECEWISE, NONE under FULL_DECODE_ONLY.
    """

    def __post_init__(self) -> None:
        if not self.capture_sizes or min(self.capture_sizes) < 1:
            raise ValueError(
                f"capture_sizes {self.capture_sizes} should be positive token counts, "
                "one or more: give some such as (1, 2, 4, 8)."
            )
        if self.max_num_reqs < 1:
            raise ValueError(
                f"max_num_reqs {self.max_num_reqs} should be positive: a decode step "
                "has at least one request."
            )

    def rungs(self, query_len: int) -> Iterator[tuple[int, int]]:
        """Requests and tokens of each FULL graph of this query length, smallest first;
        twice where two capture sizes make the same.
        """
        for size in sorted(self.capture_sizes):
            if not self.why_not_captured(size, query_len):
                yield _whole_requests(size, query_len)

    def why_not_captured(self, size: int, query_len: int) -> str:
        """Why this capture size has no FULL graph of decodes; "" if it has one."""
        num_reqs, num_tokens = _whole_requests(size, query_len)
        if num_reqs > self.max_num_reqs:
            return f"it holds {num_reqs} requests, and there are {self.max_num_reqs}"
        if num_tokens > max(self.capture_sizes):
            return (
                f"rounded up to whole requests it is {num_tokens} tokens, more than "
                f"the largest capture size {max(self.capture_sizes)}"
            )
        return ""

    def dispatch(
        self,
        num_reqs: int,
        num_tokens: int,
        uniform_token_count: int | None,
        num_active_loras: int,
    ) -> Descriptor:
        """The smallest graph that holds the step, a FULL one if there is one; eager
        where none does.
        """
        if uniform_token_count is not None:
            for rung_reqs, rung_tokens in self.rungs(uniform_token_count):
                if num_reqs <= rung_reqs and num_tokens <= rung_tokens:
                    return Descriptor(
                        CUDAGraphMode.FULL, rung_tokens, rung_reqs, uniform_token_count
                    )
        if self.mixed_mode is not CUDAGraphMode.NONE:
            for size in sorted(self.capture_sizes):
                if num_tokens <= size:
                    return Descriptor(self.mixed_mode, size, None, None)
        return Descriptor(CUDAGraphMode.NONE, num_tokens, num_reqs, None)


def _whole_requests(size: int, query_len: int) -> tuple[int, int]:
    """Requests and tokens of a capture size, rounded up to whole requests."""
    num_reqs = -(-size // query_len)
    return num_reqs, num_reqs * query_len
