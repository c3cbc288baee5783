"""One thing that speaks against recording a build, and where in it to look."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from graphparity.fastpath.proving.group_memory import Span, is_inside
from graphparity.fastpath.proving.verdict import Check
from graphparity.fastpath.recorders.protocol import CaptureError, NodeParameters


@dataclass(frozen=True)
class Finding:
    """What a check found, as a refusal tells it."""

    check: Check
    reason: str
    operation: str = ""
    field: str = ""
    location: str = ""
    is_capture_error: bool = False
    """Whether there is no capture to look at."""

    def is_like(self, other: "Finding") -> bool:
        """Whether both speak of one fault, if perhaps in other batches."""
        mine = (self.check, self.operation, self.field)
        return mine == (other.check, other.operation, other.field)


def capture_refused(error: CaptureError) -> Finding:
    """The recorder's own refusal."""
    reason = f"{error.operation} cannot be recorded: {error.reason}."
    return Finding(
        Check.RECORDABLE_NODES,
        reason,
        operation=error.operation,
        location=error.location,
        is_capture_error=True,
    )


def at_node(
    check: Check, node: NodeParameters | None, reason: str, *, field: str = ""
) -> Finding:
    """A finding about a recorded operation, where one is known."""
    if node is None:
        return Finding(check, reason, field=field)
    return Finding(check, reason, node.name, field, node.location)


def last_node_at(
    nodes: Sequence[NodeParameters], spans: Iterable[Span]
) -> NodeParameters | None:
    """The last node that writes into ``spans``; that points there, where a recorder
    cannot tell what is written.
    """
    spans = tuple(spans)
    for node in reversed(nodes):
        for name, address in node.pointers:
            may_write = not node.written or name in node.written
            if may_write and is_inside(address, spans):
                return node
    return None
