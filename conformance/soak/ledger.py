"""What was soaked of one subject, kept in a folder."""

import hashlib
import importlib.metadata
import importlib.util
import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path

from graphparity.conformance.results import SubjectResult

PACKAGES = ("reference", "fastpath", "conformance")


@dataclass
class Ledger:
    """One subject's rounds so far."""

    result: SubjectResult
    """What was checked, added up over all rounds."""
    code: str
    """``code_version`` of what was checked."""
    rounds: int = 0
    """Rounds of which every unit passed."""
    done: list[str] = field(default_factory=list)
    """Units of the round at work that passed."""
    failing: list[str] = field(default_factory=list)
    """Units with a kept example that failed when it was tried last."""
    message: str = ""
    """What the last failure said; "" since it passed."""

    @property
    def path(self) -> Path:
        """Where the ledger lies in the folder of a soak."""
        return ledger_path(self.result.subject)

    def save(self, folder: Path) -> None:
        """Write the ledger; a reader never sees half of it."""
        target = folder / self.path
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_suffix(".part")
        draft.write_text(json.dumps(asdict(self)))
        draft.replace(target)


def ledger_path(subject: str) -> Path:
    """Where a subject's ledger lies in the folder of a soak."""
    return Path(re.sub(r"[^\w.-]+", "-", subject), "ledger.json")


def read_ledger(folder: Path, subject: str) -> Ledger | None:
    """A subject's ledger; None if it was never soaked in that folder."""
    path = folder / ledger_path(subject)
    if not path.exists():
        return None
    row = json.loads(path.read_text())
    return Ledger(**{**row, "result": SubjectResult.of_json(row["result"])})


def code_version() -> str:
    """Changes with any source of graphparity, and with vLLM's version: what was checked
    of other code counts for nothing.
    """
    digest = hashlib.sha256(_vllm_version().encode())
    for package in PACKAGES:
        spec = importlib.util.find_spec(f"graphparity.{package}")
        assert spec is not None
        for root in sorted(spec.submodule_search_locations or ()):
            for source in sorted(Path(root).rglob("*.py")):
                digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def _vllm_version() -> str:
    try:
        return importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        return "none"
