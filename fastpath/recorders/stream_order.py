"""Which recorded operations must follow which, where a capture forks and joins.

Operations of one stream follow each other. A fork makes a side stream follow what the
capture stream holds so far, a join makes the capture stream follow the side stream.
Nothing else is ordered: on a GPU, branches run in any interleaving. Whoever replays in
an order drawn here finds what depends on another one.

Invariant: every order drawn is one that a GPU may take.
"""

import random
from collections.abc import Sequence

_CAPTURE_STREAM = -1


class StreamOrder:
    """The order of the nodes of one capture, by their position in the recording.

    Attributes:
        current: the side stream that the build's work goes to; -1 for the capture
            stream.
    """

    def __init__(self) -> None:
        self.current = _CAPTURE_STREAM
        self._last: dict[int, frozenset[int]] = {_CAPTURE_STREAM: frozenset()}
        self._follows: list[frozenset[int]] = []

    def add_node(self) -> None:
        """Put the next node on the current stream."""
        self._follows.append(self._last[self.current])
        self._last[self.current] = frozenset({len(self._follows) - 1})

    def is_forked(self, stream: int) -> bool:
        """Whether a side stream is part of the capture."""
        return stream in self._last

    def fork(self, stream: int) -> None:
        """Let a side stream follow what the current one holds so far."""
        before = self._last.get(stream, frozenset())
        self._last[stream] = before | self._last[self.current]

    def join(self, stream: int) -> None:
        """Let the current stream follow what a side stream holds so far."""
        self._last[self.current] |= self._last[stream]

    def unjoined(self) -> list[int]:
        """The side streams with nodes that the capture stream's end does not follow."""
        reached = self._reached_from(self._last[_CAPTURE_STREAM])
        return [stream for stream, last in self._last.items() if not last <= reached]

    def drawn(self, seed: int) -> Sequence[int]:
        """The nodes' positions in an order that they may run in.

        Args:
            seed: 0 lets the branch that was recorded last run first, and each as a
                whole; any other one takes turns between branches, in a random order.
        """
        draw = random.Random(seed)
        waiting = {node: set(before) for node, before in enumerate(self._follows)}
        order: list[int] = []
        while waiting:
            ready = [node for node, before in waiting.items() if not before]
            others = [
                node for node in ready if self._follows[node].isdisjoint(order[-1:])
            ]
            order.append(node := draw.choice(others or ready) if seed else max(ready))
            del waiting[node]
            for before in waiting.values():
                before.discard(node)
        return order

    def _reached_from(self, nodes: frozenset[int]) -> set[int]:
        reached: set[int] = set()
        pending = list(nodes)
        while pending:
            node = pending.pop()
            if node not in reached:
                reached.add(node)
                pending.extend(self._follows[node])
        return reached
