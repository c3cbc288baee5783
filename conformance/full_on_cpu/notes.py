"""What an engine was seen to do, apart from the plug-in's own counters."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass
class EngineNotes:
    """Of the engine that this process runs, or of the rank that it is."""

    is_serving: bool = False
    """While requests are served: what captures and warm-ups do is not counted."""
    recorder_replays: int = 0
    """Recordings replayed for requests."""
    full_steps: Counter[tuple[int, int]] = field(default_factory=Counter)
    """(query length, LoRA adapters) of a FULL graph -> how often it ran."""
    captures: list[dict[str, Any]] = field(default_factory=list)
    """Of every capture of the worker: whether it profiled, and what was alive after."""
    drafts: list[list[list[list[int]]]] = field(default_factory=list)
    """Of every wave and step, the tokens that a draft model drafts of each request."""
    draft_prefills: list[list[list[int]]] = field(default_factory=list)
    """Of every wave, longest query and sequence that each eager draft prefill reads."""
    connector_reads: list[list[int]] = field(default_factory=list)
    """Of every FULL step, the longest sequence that a connector reads of, the one that
    was scheduled, and whether what it kept of the step before was left alone."""
    handed_out: Any = None
    """The metadata of the step that is drafted for."""
    keys: list[list[int]] = field(default_factory=list)
    """The keys recorded in the last capture, as plain numbers."""
    models_loaded: list[str] = field(default_factory=list)
    """The models whose weights were loaded."""

    def is_handed_out(self, metadata: Any) -> bool:
        """Whether the step that is drafted for has this very object."""
        return any(it is metadata for it in (self.handed_out or {}).values())

    def begin_wave(self) -> None:
        """Requests are served from now on."""
        self.is_serving = True
        self.drafts.append([])
        self.draft_prefills.append([])

    def clear(self) -> None:
        """As before the first engine."""
        vars(self).update(vars(EngineNotes()))

    def as_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "recorder_replays": self.recorder_replays,
            "full_steps": [
                {"query_len": query_len, "num_active_loras": num_loras, "steps": steps}
                for (query_len, num_loras), steps in sorted(self.full_steps.items())
            ],
            "captures": list(self.captures),
            "keys": list(self.keys),
            "drafts": list(self.drafts),
            "draft_prefills": list(self.draft_prefills),
            "connector_reads": list(self.connector_reads),
            "models_loaded": len(self.models_loaded),
        }


NOTES = EngineNotes()
