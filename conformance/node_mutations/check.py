"""The check: every recorded node made wrong in any one way is noticed by some batch."""

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from graphparity.conformance.comparer import Difference
from graphparity.conformance.decode_batches import DecodeBatch, decode_batches
from graphparity.conformance.node_mutations.mutation import MutationKind
from graphparity.conformance.node_mutations.sweep import Sweep, keys_swept
from graphparity.conformance.parity_errors import raise_found
from graphparity.conformance.subjects.subject import Subject

MAX_ROUNDS = 12
"""Rounds of one batch a key in which a fault may stay unnoticed."""


def every_mutation_is_noticed(subject: Subject) -> Sweep:
    """Make the subject's recordings wrong, one fault at a time.

    Raises:
        ParityError: a fault stayed unnoticed, and neither what its launch touches nor
            the subject's ``indifferent_operands`` say why; a key has nodes that no key
            swept has; or no fault was noticed at all, so that nothing was proved.

    Returns:
        What came of each fault.
    """
    sweep = _swept(subject)
    found = [Difference(str(it), "unnoticed", "noticed") for it in sweep.unnoticed]
    found += [Difference(it, "in no key swept", "in one") for it in sweep.unseen_nodes]
    found += [
        Difference(f"{it.node} {it.operand}", "listed", "an operand of some node")
        for it in sweep.stale_entries
    ]
    if not any(map(sweep.num_noticed, MutationKind)):
        found.append(Difference("faults noticed", "0", "1 or more"))
    raise_found(subject, "recordings made wrong, one fault at a time,", found)
    return sweep


def _swept(subject: Subject) -> Sweep:
    keys, sweep = keys_swept(subject), Sweep(subject)

    @settings(
        max_examples=MAX_ROUNDS,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(batches=st.tuples(*(decode_batches(subject.limits, key) for key in keys)))
    def run_round(batches: tuple[DecodeBatch, ...]) -> None:
        sweep.run_round(batches)

    run_round()
    return sweep
