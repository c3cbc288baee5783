"""Every fault of every site, over a few keys: the comparison must notice each.

A recording has some hundred faults, and keys share most of their sites. So each site
is tried on one of a few keys, spread evenly, and on others as long as the comparison
passes. All sites together cover every node, every kind of fault and every key.

A fault can be without effect, which is decided by what its launch touches: nodes that
share no memory may run in either order, and a pointer that a kernel never follows may
point anywhere. What else stays unnoticed is listed by the subject, with the reason.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from graphparity.conformance.decode_batches import DecodeBatch
from graphparity.conformance.node_mutations.evidence import why_without_effect
from graphparity.conformance.node_mutations.mutation import (
    Mutation,
    MutationKind,
    Site,
    mutations_of,
    nodes_named,
)
from graphparity.conformance.node_mutations.poisoned_step import (
    Outcome,
    PoisonedStep,
    poisoned_step,
)
from graphparity.conformance.subjects.subject import IndifferentOperand, Subject
from graphparity.fastpath.graph_key import GraphKey
from graphparity.fastpath.recorders import EmulatedGraph

NUM_KEYS = 4
"""Keys that sites are spread over: the smallest of two requests or more."""
NUM_WITNESSES = 2
"""Steps that must all show that a fault is without effect."""


@dataclass
class Trial:
    """What came of one site so far."""

    due: int
    """The place, among the keys swept, of its first try."""
    num_tries: int = 0
    reasons: set[str] = field(default_factory=set)
    """Why a try had no effect; "" of a try that nothing explains."""

    @property
    def is_explained(self) -> bool:
        """Whether enough tries had no effect, each for a reason that was seen."""
        return self.num_tries >= NUM_WITNESSES and "" not in self.reasons


class Sweep:
    """The sites of one subject's recordings, and what came of each."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._num_rounds = 0
        self._pending: dict[Site, Trial] = {}
        self._done: set[Site] = set()
        self.listed: dict[IndifferentOperand, int] = dict.fromkeys(
            subject.indifferent_operands, 0
        )
        """What the subject lists -> sites that it is of."""
        self.counts: Counter[tuple[MutationKind, str]] = Counter()
        """(kind, what came of it) -> sites."""
        self._nodes: set[str] = set()
        """Name and line of every node of the keys swept."""

    @property
    def unnoticed(self) -> list[Site]:
        """The sites of which nothing was noticed yet, nor shown to have no effect."""
        return sorted(self._pending, key=str)

    def num_noticed(self, kind: MutationKind) -> int:
        """Sites whose fault the comparison noticed."""
        return self.counts[kind, Outcome.NOTICED.value]

    @property
    def unseen_nodes(self) -> list[str]:
        """Nodes of other keys that no key swept has."""
        graphs = (metered.graph for metered in self._subject.recorder.graphs)
        every = {
            name
            for graph in graphs
            if isinstance(graph, EmulatedGraph)
            for name in nodes_named(graph)
        }
        return sorted(every - self._nodes)

    @property
    def stale_entries(self) -> list[IndifferentOperand]:
        """What the subject lists of nodes that it has, and no operand of them is."""
        return [
            entry
            for entry, number in self.listed.items()
            if not number and any(entry.is_of(it, entry.operand) for it in self._nodes)
        ]

    def run_round(self, batches: Sequence[DecodeBatch]) -> None:
        """Try what is unnoticed; the first round tries each site once.

        Args:
            batches: a step of each of ``keys_swept``, in that order.
        """
        for place, batch in enumerate(batches):
            if self._num_rounds and not self._pending:
                break
            # What a wrong launch reads is at times tiny, at times like real values.
            keeps_size = bool(self._num_rounds % 2)
            with poisoned_step(self._subject, batch, keeps_size=keeps_size) as step:
                if step.graph is not None:
                    self._nodes.update(nodes_named(step.graph))
                    for mutation in self._due(step.graph, place, len(batches)):
                        self._try(step, step.graph, mutation)
        self._num_rounds += 1

    def _due(
        self, graph: EmulatedGraph, place: int, num_places: int
    ) -> Iterator[Mutation]:
        for number, mutation in enumerate(mutations_of(graph)):
            site = mutation.site
            if site in self._done or self._is_listed(site):
                continue
            due = place + number % (num_places - place)
            trial = self._pending.setdefault(site, Trial(due))
            if self._num_rounds or trial.due == place:
                yield mutation

    def _is_listed(self, site: Site) -> bool:
        for entry in self.listed:
            if entry.is_of(site.node, site.operand):
                self.listed[entry] += 1
                self._finish(site, "listed by the subject")
                return True
        return False

    def _try(
        self, step: PoisonedStep, graph: EmulatedGraph, mutation: Mutation
    ) -> None:
        outcome = step.outcome_of(mutation.make())
        if outcome is not Outcome.UNNOTICED:
            self._finish(mutation.site, outcome.value)
            return
        trial = self._pending[mutation.site]
        trial.num_tries += 1
        trial.reasons.add(why_without_effect(step, graph, mutation))
        if trial.is_explained:
            self._finish(mutation.site, " or ".join(sorted(trial.reasons)))

    def _finish(self, site: Site, outcome: str) -> None:
        self._pending.pop(site, None)
        self._done.add(site)
        self.counts[site.kind, outcome] += 1


def keys_swept(subject: Subject) -> list[GraphKey]:
    """The keys that sites are spread over."""
    keys = sorted(subject.graph_keys)
    return [key for key in keys if key.num_reqs > 1][:NUM_KEYS] or keys[:1]
