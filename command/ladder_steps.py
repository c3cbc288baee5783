"""What a ladder of capture sizes does with every uniform decode step."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from graphparity.fastpath.capture_ladder import CaptureLadder
from graphparity.fastpath.graph_key import GraphKey, keys_to_record
from graphparity.reference.interface import CUDAGraphMode


@dataclass(frozen=True)
class EagerSteps:
    """Steps that no FULL graph serves, so that their metadata is built eagerly."""

    first_num_reqs: int
    last_num_reqs: int
    mode: str
    """How their forward runs: ``PIECEWISE``, or ``NONE`` without any graph."""


@dataclass(frozen=True)
class LadderSteps:
    """The steps of one query length, by how they are served."""

    ladder: CaptureLadder
    query_len: int
    keys: tuple[GraphKey, ...]
    """What is recorded, smallest first."""
    eager: tuple[EagerSteps, ...]
    """All other steps, smallest first."""

    @classmethod
    def of(cls, ladder: CaptureLadder, query_len: int) -> "LadderSteps":
        """Every step from one request to the most, as dispatch serves it."""
        keys = keys_to_record(
            ladder.dispatch,
            max_num_reqs=ladder.max_num_reqs,
            query_lens=[query_len],
            full_mode=CUDAGraphMode.FULL,
        )
        eager = tuple(_eager_steps(ladder, query_len))
        return cls(ladder, query_len, tuple(sorted(keys)), eager)

    @property
    def rungs(self) -> list[tuple[int, int]]:
        """Requests and tokens of each FULL graph, smallest first."""
        return sorted({*self.ladder.rungs(self.query_len)})

    @property
    def without_graph(self) -> dict[int, str]:
        """Capture size -> why it has no FULL graph."""
        reasons = {
            size: self.ladder.why_not_captured(size, self.query_len)
            for size in self.ladder.capture_sizes
        }
        return {size: why for size, why in reasons.items() if why}

    @property
    def padding_share(self) -> float:
        """Padding among the tokens of one step of each key; 0 without keys."""
        padded = sum(key.num_tokens_after_padding for key in self.keys)
        return 1 - sum(key.num_tokens for key in self.keys) / padded if padded else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Plain data for programs."""
        return {
            "capture_sizes": list(self.ladder.capture_sizes),
            "max_num_seqs": self.ladder.max_num_reqs,
            "query_len": self.query_len,
            "rungs": [
                {"num_reqs": num_reqs, "num_tokens": num_tokens}
                for num_reqs, num_tokens in self.rungs
            ],
            "keys": [key._asdict() for key in self.keys],
            "padding_share": self.padding_share,
            "eager": [asdict(steps) for steps in self.eager],
            "without_graph": {str(k): why for k, why in self.without_graph.items()},
        }


def padding_of(key: GraphKey) -> float:
    """The share of padding among the tokens of a key's step."""
    return 1 - key.num_tokens / key.num_tokens_after_padding


def _eager_steps(ladder: CaptureLadder, query_len: int) -> Iterator[EagerSteps]:
    """Neighbours of one mode together."""
    run: EagerSteps | None = None
    for num_reqs in range(1, ladder.max_num_reqs + 1):
        mode = ladder.dispatch(num_reqs, num_reqs * query_len, query_len, 0).cg_mode
        if run is not None and run.mode == mode.name:
            run = EagerSteps(run.first_num_reqs, num_reqs, mode.name)
            continue
        if run is not None:
            yield run
        is_full = mode is CUDAGraphMode.FULL
        run = None if is_full else EagerSteps(num_reqs, num_reqs, mode.name)
    if run is not None:
        yield run
