"""The profiles of a run: how many batches are drawn, and whether always the same.

``dev`` takes seconds, while a builder is being written. ``ci`` is what every change
must pass: it draws the same batches in every run. ``soak`` takes as long as it is
given, draws other batches in every run, and keeps what failed.
"""

from dataclasses import dataclass

from hypothesis import HealthCheck, settings
from hypothesis.database import ExampleDatabase


@dataclass(frozen=True)
class RunProfile:
    """How much a run draws."""

    name: str
    max_examples: int
    """Random batches a key."""
    lives: tuple[int, int]
    """Random lives of a subject of plain torch, and the most rules in each."""
    vllm_lives: tuple[int, int]
    """The same of a subject of vLLM's interpreted kernels."""
    vllm_renewed_lives: tuple[int, int]
    """The same, with recordings renewed, which takes as long as recording does."""
    is_derandomized: bool = True
    """Whether every run draws the same batches."""

    def lives_of(self, *, is_vllm: bool, releases: bool) -> tuple[int, int]:
        """Lives, and the most rules in each."""
        if not is_vllm:
            return self.lives
        return self.vllm_renewed_lives if releases else self.vllm_lives

    def load(
        self, max_examples: int | None = None, database: ExampleDatabase | None = None
    ) -> None:
        """Make these Hypothesis's settings from now on.

        Args:
            max_examples: random batches a key; None leaves them to the profile.
            database: keeps failing examples and gives them first; None keeps none.
        """
        examples = self.max_examples if max_examples is None else max_examples
        # A session within this process must not change what another's name means.
        name = f"graphparity-{self.name}-{examples}-{id(database)}"
        settings.register_profile(
            name,
            max_examples=examples,
            derandomize=self.is_derandomized,
            database=database,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
        settings.load_profile(name)


DEV = RunProfile("dev", 2, lives=(2, 12), vllm_lives=(1, 8), vllm_renewed_lives=(1, 8))
CI = RunProfile("ci", 10, lives=(8, 30), vllm_lives=(4, 12), vllm_renewed_lives=(2, 12))
SOAK = RunProfile(
    "soak",
    100,
    lives=(40, 50),
    vllm_lives=(10, 30),
    vllm_renewed_lives=(4, 30),
    is_derandomized=False,
)
SESSION_PROFILES = {it.name: it for it in (DEV, CI)}
"""Name -> profile of one pytest session; a soak is many."""
