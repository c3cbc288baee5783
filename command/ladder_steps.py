"""What a ladder of capture sizes does with every uniform decode step."""

from dataclasses import asdict, dataclass
from typing import Any

from graphparity.fastpath.capture_ladder import CaptureLadder
from graphparity.fastpath.graph_key import GraphKey, keys_to_record
from graphparity.reference.interface import CUDAGraphMode


@dataclass(frozen=True)
class UnrecordedStep:
    """A step that no FULL graph serves: its metadata is built eagerly."""

    num_reqs: int
    num_tokens: int
    mode: str
    """``PIECEWISE``, or ``NONE`` for a forward without graphs."""
    num_tokens_after_padding: int


@dataclass(frozen=True)
class LadderSteps:
    """The steps of one query length, by how they are served."""

    capture_sizes: tuple[int, ...]
    max_num_seqs: int
    query_len: int
    rungs: tuple[tuple[int, int], ...]
    """Requests and tokens of each FULL graph, smallest first."""
    keys: tuple[GraphKey, ...]
    """What is recorded, smallest first."""
    unrecorded: tuple[UnrecordedStep, ...]

    @classmethod
    def of(
        cls, capture_sizes: tuple[int, ...], max_num_seqs: int, query_len: int
    ) -> "LadderSteps":
        """Every step from one request to ``max_num_seqs``, as dispatch serves it."""
        ladder = CaptureLadder(capture_sizes, max_num_seqs, CUDAGraphMode.PIECEWISE)
        keys = keys_to_record(
            ladder.dispatch,
            max_num_reqs=max_num_seqs,
            query_lens=[query_len],
            full_mode=CUDAGraphMode.FULL,
        )
        served = {key.num_reqs for key in keys}
        unrecorded = [
            _unrecorded(ladder, num_reqs, query_len)
            for num_reqs in range(1, max_num_seqs + 1)
            if num_reqs not in served
        ]
        return cls(
            capture_sizes,
            max_num_seqs,
            query_len,
            tuple(sorted({*ladder.rungs(query_len)})),
            tuple(sorted(keys)),
            tuple(unrecorded),
        )

    @property
    def padding_share(self) -> float:
        """The share of padding among the tokens of all recorded steps, one step of
        each key.
        """
        padded = sum(key.num_tokens_after_padding for key in self.keys)
        return 1 - sum(key.num_tokens for key in self.keys) / padded if padded else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Plain data for programs."""
        return {
            "capture_sizes": list(self.capture_sizes),
            "max_num_seqs": self.max_num_seqs,
            "query_len": self.query_len,
            "rungs": [
                {"num_reqs": num_reqs, "num_tokens": num_tokens}
                for num_reqs, num_tokens in self.rungs
            ],
            "keys": [key._asdict() for key in self.keys],
            "unrecorded": [asdict(step) for step in self.unrecorded],
            "padding_share": self.padding_share,
        }


def _unrecorded(ladder: CaptureLadder, num_reqs: int, query_len: int) -> UnrecordedStep:
    num_tokens = num_reqs * query_len
    answer = ladder.dispatch(num_reqs, num_tokens, query_len, 0)
    return UnrecordedStep(num_reqs, num_tokens, answer.cg_mode.name, answer.num_tokens)
