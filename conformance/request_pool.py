"""Requests and the blocks they hold, as the scheduler would hand them out."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from graphparity.conformance.decode_batches import BlockIds
from graphparity.conformance.subjects.subject import Subject


@dataclass
class Request:
    """One request in the engine."""

    index: int
    """Its row in the runner's state."""
    length: int
    """Tokens that are known: the prompt, and what was sampled since."""
    computed: int
    """Tokens whose KV was computed, or found in the prefix cache."""
    replay_start: int
    block_ids: list[list[int]] = field(default_factory=list)
    """[num_kv_cache_groups] its blocks, in order."""

    @property
    def remaining(self) -> int:
        """Prompt tokens yet to be computed."""
        return self.length - self.computed


class RequestPool:
    """The free rows and blocks of an engine; what was freed last is taken first, so
    that a new request soon holds what another just gave back.
    """

    def __init__(self, subject: Subject) -> None:
        tables = subject.block_tables
        self._block_sizes = [int(size) for size in tables.block_sizes]
        self._widths = [int(table.shape[1]) for table in tables.input_block_tables]
        self._free_blocks = list(range(subject.kv_cache_config.num_blocks - 1, 0, -1))
        self._free_rows = list(range(subject.limits.max_num_reqs - 1, -1, -1))

    @property
    def has_row(self) -> bool:
        """Whether another request can be admitted."""
        return bool(self._free_rows)

    def admit(self, length: int, computed: int, replay_start: int) -> Request:
        """A new request, which holds no blocks yet."""
        groups: list[list[int]] = [[] for _ in self._block_sizes]
        row = self._free_rows.pop()
        return Request(row, length, computed, replay_start, groups)

    def hold(self, requests: Sequence[Request], seq_lens: Sequence[int]) -> BlockIds:
        """Give every request the blocks for so many tokens; returns all they hold."""
        for request, seq_len in zip(requests, seq_lens, strict=True):
            for group, size in enumerate(self._block_sizes):
                num_blocks = min(-(-seq_len // size), self._widths[group])
                held = request.block_ids[group]
                while len(held) < num_blocks:
                    held.append(self._free_blocks.pop())
        return tuple(
            tuple(tuple(request.block_ids[group]) for request in requests)
            for group in range(len(self._block_sizes))
        )

    def free_blocks(self, request: Request) -> None:
        """Take back the blocks of a preempted request."""
        for held in request.block_ids:
            self._free_blocks += held
            held.clear()

    def free(self, request: Request) -> None:
        """Take back all of a finished request."""
        self.free_blocks(request)
        self._free_rows.append(request.index)
