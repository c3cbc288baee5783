"""Where nothing is planted, nothing is found, whatever is drawn."""

import pytest

from graphparity.conformance.faults.catalogue import FAULTS
from graphparity.conformance.faults.hunt import Draws, hunt
from graphparity.conformance.profile import PROFILE

NUM_SEEDS = 20
LIVES = ("lives", "renewed")
SLOW = (*LIVES, "ranks", "recorded again", "partly recorded")
CHEAP = [name for name in PROFILE if name not in SLOW]
"""``python -m graphparity.conformance.faults --sound 20`` runs all."""


@pytest.mark.parametrize("seed", range(NUM_SEEDS))
def test_sound_subject_raises_no_alarm(seed: int) -> None:
    """Every seed draws other batches; query lengths take turns."""
    draws = Draws(max_examples=1, seed=seed)
    alarm = hunt(f"torch-decode:{1 + seed % 3}", None, checks=CHEAP, draws=draws)
    assert alarm is None


def test_nothing_is_left_of_the_faults_that_were_planted() -> None:
    """After every context manager has ended, a new subject is sound."""
    for fault in FAULTS.values():
        with fault.plant():
            pass
    checks = [name for name in PROFILE if name not in LIVES]
    assert hunt("torch-decode:2", None, checks=checks, draws=Draws(1)) is None
