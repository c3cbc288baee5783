"""What compared builds showed of each metadata leaf, and the classes that follow."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from graphparity.fastpath.graph_key import GraphKey
from graphparity.fastpath.proving.leaves import Leaf
from graphparity.fastpath.proving.verdict import Field, FieldClass
from graphparity.reference.padding import Padding


@dataclass
class LeafEvidence:
    """What all comparisons of one leaf showed."""

    is_device: bool = False
    exceeds: bool = False
    """A host bound: the recorded value exceeded an eager one."""
    is_longest: bool = True
    """Every eager value is the length of the step's longest sequence."""
    follows_bound: bool = False
    """Device contents that differ from eager's, and only by the host bound."""
    is_opaque: bool = False
    is_same_object: bool = True
    samples: list[tuple[GraphKey, torch.Tensor, torch.Tensor]] = field(
        default_factory=list
    )
    """The live and the padded rows after replays."""


class FieldLog:
    """The evidence on every leaf of a group's metadata."""

    def __init__(self) -> None:
        self.leaves: dict[str, LeafEvidence] = defaultdict(LeafEvidence)

    def note_rows(self, key: GraphKey, path: str, leaf: Leaf) -> None:
        """Keep the live and padded rows of a device leaf."""
        num_live = _live_rows(key, leaf.value)
        self.leaves[path].is_device = True
        if num_live is not None:
            rows = leaf.value
            self.leaves[path].samples.append((key, rows[:num_live], rows[num_live:]))

    def fields(self) -> tuple[Field, ...]:
        """Every leaf with its classes."""
        return tuple(self._fields())

    def _fields(self) -> Iterator[Field]:
        for path, seen in sorted(self.leaves.items()):
            field_class, reason = _field_class(seen)
            padding, padding_reason = _padding(seen)
            yield Field(
                path,
                field_class,
                reason,
                padding,
                padding_reason,
                is_longest=field_class is FieldClass.BOUND and seen.is_longest,
                is_made_anew=seen.is_opaque and not seen.is_same_object,
            )


def _field_class(seen: LeafEvidence) -> tuple[FieldClass, str]:
    if seen.is_opaque:
        others = "every build returns it"
        if not seen.is_same_object:
            others = "eager builds make a new one of its type"
        return FieldClass.IDENTITY, f"an opaque object: {others}"
    if seen.follows_bound:
        return FieldClass.BOUND_AFFECTING, (
            "device contents that change with the host bound alone; the recorded ones "
            "are those of the worst case, so kernels may sum in another order"
        )
    if seen.exceeds:
        return FieldClass.BOUND, (
            "a host number at least as large in the worst case as in every eager build"
        )
    kind = "device contents" if seen.is_device else "a host value"
    return FieldClass.EXACT, f"{kind} equal to eager's in every batch"


def _live_rows(key: GraphKey, rows: torch.Tensor) -> int | None:
    """Live rows of a tensor whose first axis has the key's padded size."""
    if key.num_reqs == key.num_reqs_after_padding or not rows.dim():
        return None
    sizes = {
        key.num_reqs_after_padding + 1: key.num_reqs + 1,
        key.num_reqs_after_padding: key.num_reqs,
        key.num_tokens_after_padding: key.num_tokens,
    }
    return sizes.get(rows.shape[0])


def _padding(seen: LeafEvidence) -> tuple[Padding | None, str]:
    if not seen.samples:
        return None, ""
    if all(_is_request_map(*sample) for sample in seen.samples):
        return Padding.REQUEST_0, "padded rows of this map lead to request 0"
    if _is_constant(seen):
        return Padding.SENTINEL, "padded rows hold the same in all batches of a key"
    if all(_repeats_row_0(*sample) for sample in seen.samples):
        return Padding.REQUEST_0, "padded rows hold what row 0 holds"
    return Padding.UNSPECIFIED, (
        "padded rows differ between batches of a key, with what earlier steps left"
    )


def _is_constant(seen: LeafEvidence) -> bool:
    first: dict[GraphKey, torch.Tensor] = {}
    for key, _, padded in seen.samples:
        if not torch.equal(first.setdefault(key, padded), padded):
            return False
    return True


def _is_request_map(key: GraphKey, live: torch.Tensor, padded: torch.Tensor) -> bool:
    """Whether every token's row holds the index of its request, and padding 0."""
    if live.dim() != 1 or live.shape[0] != key.num_tokens or bool(padded.any()):
        return False
    requests = torch.arange(key.num_reqs, device=live.device)
    return bool((live == requests.repeat_interleave(key.query_len)).all())


def _repeats_row_0(key: GraphKey, live: torch.Tensor, padded: torch.Tensor) -> bool:
    return torch.equal(padded, live[:1].expand_as(padded))
