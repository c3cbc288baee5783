"""What the operator sees of a plugged-in state: plain data, and the same as text."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

GIB, MIB = 1 << 30, 1 << 20


@dataclass(frozen=True)
class GroupReport:
    """One KV-cache group."""

    index: int
    builder: str
    num_layers: int
    is_recorded: bool
    reason: str
    """Why it is eager, or what it was judged by."""


@dataclass(frozen=True)
class ForkReport:
    """In how many branches builds were recorded, and what that was decided by.

    Times are microseconds of one replay of the largest key, None where nothing was
    measured.
    """

    num_branches: int = 0
    """1 for a serial build, 0 if nothing was recorded."""
    reason: str = ""
    num_tried: int = 0
    """Branches of the build that the serial one was measured against."""
    serial_gpu_us: float | None = None
    serial_launch_us: float | None = None
    forked_gpu_us: float | None = None
    forked_launch_us: float | None = None


@dataclass(frozen=True)
class DraftReport:
    """The builds of a draft model's own decode steps."""

    num_keys: int = 0
    """Keys that the draft's dispatch serves by FULL graphs of one token a request."""
    num_recorded: int = 0
    num_graphs: int = 0
    key_refusals: Mapping[str, str] = field(default_factory=dict)
    groups: Sequence[GroupReport] = ()
    """One refused group leaves all builds of the draft eager."""
    capture_s: float = 0.0
    """Seconds of judging and recording."""
    judge_s: float = 0.0
    memory_bytes: int = 0
    builds_replayed: int = 0
    """One for each draft token after the first of a step."""
    builds_verified: int = 0
    builds_eager: Mapping[str, int] = field(default_factory=dict)
    """By reason."""
    why_none: str = ""
    """Why a draft model has no builds to record; "" without a draft model."""


@dataclass(frozen=True)
class Report:
    """A state, what was recorded of it, and what its steps did since."""

    model_state: str
    mode: str
    recorder: str = ""
    num_keys: int = 0
    """Keys that the runner's dispatch serves by FULL graphs, for data parallelism also
    those padded for a larger rank."""
    num_recorded: int = 0
    num_graphs: int = 0
    """Recorded graphs; where a group builds alike in a rung, its keys share one."""
    num_left_eager: int = 0
    """Keys padded for a larger data-parallel rank, where no recording serves a rung."""
    num_launchless: int = 0
    """Recorded keys whose build has no device work."""
    num_made_anew: int = 0
    """Recorded keys whose metadata is read on the host, and made anew at every step."""
    key_refusals: Mapping[str, str] = field(default_factory=dict)
    groups: Sequence[GroupReport] = ()
    draft: DraftReport = DraftReport()
    fork: ForkReport = ForkReport()
    capture_s: float = 0.0
    """Seconds of judging and recording."""
    judge_s: float = 0.0
    """Of them, the seconds of judging."""
    memory_bytes: int = 0
    """Device memory that the recordings took."""
    steps_replayed: int = 0
    steps_verified: int = 0
    steps_eager: Mapping[str, int] = field(default_factory=dict)
    """By reason."""
    left_alone: str = ""
    """Why the state is vLLM's own; "" if it is not."""

    def as_dict(self) -> dict[str, object]:
        """Plain data: strings, numbers, lists and dictionaries."""
        plain: dict[str, Any] = asdict(self)
        plain["groups"] = [asdict(group) for group in self.groups]
        plain["draft"]["groups"] = [asdict(group) for group in self.draft.groups]
        return plain


def start_up_table(report: Report) -> str:
    """The table that the log shows once a state has recorded."""
    rows = [
        ("model state", report.model_state),
        ("mode", report.mode),
        ("recorder", report.recorder or "none"),
        ("keys", _keys(report)),
        ("branches", _branches(report.fork)),
        ("capture", _capture(report)),
    ]
    rows += [(f"group {group.index}", _group(group)) for group in report.groups]
    rows += [
        (f"key {key}", f"eager: {why}") for key, why in report.key_refusals.items()
    ]
    rows += _draft_rows(report.draft)
    width = max(len(name) for name, _ in rows)
    lines = [f"  {name:<{width}}  {value}" for name, value in rows]
    return "\n".join(["graphparity", *lines])


def counter_line(report: Report) -> str:
    """The periodic log line."""
    eager = [
        f"{count} {reason}" for reason, count in report.steps_eager.items() if count
    ]
    checked = f", {report.steps_verified} verified" if report.mode == "verify" else ""
    return (
        f"graphparity: {report.steps_replayed} steps replayed{checked}; eager: "
        f"{', '.join(eager) or 'none'}{_draft_counters(report.draft, report.mode)}"
    )


def unmet_message(model_state: str, needs: Sequence[str]) -> str:
    """Why an engine serves as without the plug-in, all needs at once."""
    return (
        f"graphparity leaves {model_state} eager. It needs: {'; '.join(needs)}. Change "
        "the engine's configuration, or set its mode to off."
    )


def _keys(report: Report) -> str:
    text = f"{report.num_recorded} of {report.num_keys} recorded"
    if report.num_graphs < report.num_recorded:
        text += f" in {report.num_graphs} graphs"
    if report.num_left_eager:
        text += f", {report.num_left_eager} padded for a larger rank left eager"
    if report.num_launchless:
        text += f", {report.num_launchless} without device work"
    if report.num_made_anew:
        text += f", {report.num_made_anew} with metadata made anew at every step"
    return text


def _draft_rows(draft: DraftReport) -> list[tuple[str, str]]:
    """Of a draft model's own decode steps; none without a draft model."""
    if draft.why_none:
        return [("draft", f"no builds to record: {draft.why_none}")]
    if not draft.num_keys:
        return []
    keys = f"{draft.num_recorded} of {draft.num_keys} recorded"
    if draft.num_graphs < draft.num_recorded:
        keys += f" in {draft.num_graphs} graphs"
    rows = [("draft keys", keys), ("draft capture", _capture(draft))]
    rows += [(f"draft group {group.index}", _group(group)) for group in draft.groups]
    return rows + [
        (f"draft key {key}", f"eager: {why}") for key, why in draft.key_refusals.items()
    ]


def _draft_counters(draft: DraftReport, mode: str) -> str:
    if not draft.num_keys:
        return ""
    checked = f", {draft.builds_verified} verified" if mode == "verify" else ""
    eager = [f"{count} {why}" for why, count in draft.builds_eager.items() if count]
    return (
        f"; draft builds: {draft.builds_replayed} replayed{checked}; eager: "
        f"{', '.join(eager) or 'none'}"
    )


def _branches(fork: ForkReport) -> str:
    text = f"{fork.num_branches} ({fork.reason}"
    if fork.num_tried:
        text += (
            f": in {fork.num_tried} the GPU takes {fork.forked_gpu_us:.1f} us instead "
            f"of {fork.serial_gpu_us:.1f}, the launch {fork.forked_launch_us:.1f} "
            f"instead of {fork.serial_launch_us:.1f}"
        )
    return f"{text})"


def _capture(report: Report | DraftReport) -> str:
    return (
        f"{report.capture_s:.2f} s (judging {report.judge_s:.2f} s), "
        f"{_memory(report.memory_bytes)}"
    )


def _group(group: GroupReport) -> str:
    verb = "recorded" if group.is_recorded else "eager"
    layers = f"{group.num_layers} layer{'s' if group.num_layers != 1 else ''}"
    return f"{verb}: {group.builder}, {layers} ({group.reason})"


def _memory(num_bytes: int) -> str:
    if num_bytes >= GIB:
        return f"{num_bytes / GIB:.2f} GiB"
    return f"{num_bytes / MIB:.1f} MiB"
