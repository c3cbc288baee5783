"""The steps of a ladder as a picture: an SVG file without anything from elsewhere.

A column is a decode step: its own tokens at the bottom, the padding up to its FULL
graph on top, or one grey bar where no FULL graph serves it. Lengths are pixels.
"""

from collections.abc import Iterator

from graphparity.command.ladder_steps import LadderSteps
from graphparity.command.output import counted

_WIDTH, _HEIGHT = 880, 480
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 748, 104, 412
"""The plot's edges."""
_MAX_LABELS = 16
_LABEL_HEIGHT = 15
_MAX_SIZES_SHOWN = 12

_STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #333b44 }
  .title { font-size: 19px; font-weight: 600; fill: #14181d }
  .faint { fill: #66707a }
  .grid { stroke: #e3e7eb }
  .axis { stroke: #66707a }
  rect { shape-rendering: crispEdges }
  .real { fill: #2a6f97 }
  .padding { fill: #f4a259 }
  .eager { fill: #c3cad1 }
  .rung { stroke: #14181d; stroke-width: 1.5 }
"""


def svg_of(steps: LadderSteps) -> str:
    """The picture, as the text of an SVG file."""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'width="{_WIDTH}" height="{_HEIGHT}" role="img">',
        f"<title>{_title(steps)}</title>",
        f"<style>{_STYLE}</style>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        *_heading(steps),
        *_grid(steps),
        *_columns(steps),
        *_rungs(steps),
        *_axis(steps),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _title(steps: LadderSteps) -> str:
    keys = counted(len(steps.keys), "graph key")
    return f"{keys} on {counted(len(steps.rungs), 'FULL graph')}"


def _heading(steps: LadderSteps) -> Iterator[str]:
    sizes = steps.ladder.capture_sizes
    shown = ", ".join(map(str, sizes[:_MAX_SIZES_SHOWN]))
    if len(sizes) > _MAX_SIZES_SHOWN:
        shown += f" ... {sizes[-1]}"
    yield _text(24, 34, _title(steps), "title")
    yield _text(
        24,
        56,
        f"max_num_seqs {steps.ladder.max_num_reqs}, query length {steps.query_len}, "
        f"capture sizes {shown}",
        "faint",
    )
    legend = [
        ("real", "tokens of the step"),
        ("padding", f"padding, {steps.padding_share:.0%} of the recorded tokens"),
    ]
    if steps.eager:
        legend.append(("eager", "no FULL graph: built eagerly"))
    x = 24.0
    for kind, words in legend:
        yield _bar(x, 72, 12, 12, kind)
        yield _text(x + 18, 83, words)
        x += 46 + 7 * len(words)


def _grid(steps: LadderSteps) -> Iterator[str]:
    most = _most_tokens(steps)
    every = _round_step(most, 6)
    for tokens in range(0, most + 1, every):
        y = _y(tokens, most)
        yield _line(_LEFT, y, _RIGHT, y, "grid")
        yield _text(_LEFT - 8, y + 4, str(tokens), "faint", anchor="end")
    yield (
        f'<text class="faint" text-anchor="middle" transform="translate(22 '
        f'{(_TOP + _BOTTOM) / 2}) rotate(-90)">tokens after padding</text>'
    )


def _columns(steps: LadderSteps) -> Iterator[str]:
    most = _most_tokens(steps)
    for key in steps.keys:
        x, width = _column(key.num_reqs, steps)
        top, real = _y(key.num_tokens_after_padding, most), _y(key.num_tokens, most)
        yield _bar(x, real, width, _BOTTOM - real, "real")
        if top < real:
            yield _bar(x, top, width, real - top, "padding")
    for eager in steps.eager:
        for num_reqs in range(eager.first_num_reqs, eager.last_num_reqs + 1):
            x, width = _column(num_reqs, steps)
            top = _y(num_reqs * steps.query_len, most)
            yield _bar(x, top, width, _BOTTOM - top, "eager")


def _rungs(steps: LadderSteps) -> Iterator[str]:
    """A line over the steps of each FULL graph, and its size at the right, from the
    largest down as far as there is room.
    """
    most = _most_tokens(steps)
    last_label = float(-_LABEL_HEIGHT)
    for rung_reqs, rung_tokens in reversed(steps.rungs):
        served = [it.num_reqs for it in steps.keys if it.rung[0] == rung_reqs]
        left, _ = _column(min(served), steps)
        right, width = _column(max(served), steps)
        y = _y(rung_tokens, most)
        yield _line(left, y, right + width, y, "rung")
        if y - last_label >= _LABEL_HEIGHT:
            yield _text(_RIGHT + 8, y + 4, counted(rung_reqs, "request"))
            last_label = y


def _axis(steps: LadderSteps) -> Iterator[str]:
    yield _line(_LEFT, _BOTTOM, _RIGHT, _BOTTOM, "axis")
    most = steps.ladder.max_num_reqs
    every = _round_step(most, _MAX_LABELS)
    for num_reqs in {1, *range(every, most + 1, every)}:
        x, width = _column(num_reqs, steps)
        yield _text(x + width / 2, _BOTTOM + 20, str(num_reqs), "faint", "middle")
    middle = (_LEFT + _RIGHT) / 2
    yield _text(middle, _BOTTOM + 46, "requests in the step", "faint", "middle")


def _most_tokens(steps: LadderSteps) -> int:
    after_padding = [key.num_tokens_after_padding for key in steps.keys]
    return max([*after_padding, steps.ladder.max_num_reqs * steps.query_len])


def _y(tokens: int, most: int) -> float:
    return _BOTTOM - (_BOTTOM - _TOP) * tokens / most


def _column(num_reqs: int, steps: LadderSteps) -> tuple[float, float]:
    """Left edge and width of a step's column."""
    pitch = (_RIGHT - _LEFT) / steps.ladder.max_num_reqs
    width = min(pitch * 0.82, 64) if pitch > 3 else pitch
    return _LEFT + pitch * (num_reqs - 0.5) - width / 2, width


def _round_step(most: int, most_labels: int) -> int:
    """The smallest of 1, 2, 5, 10, ... that divides ``most`` into few enough parts."""
    power = 1
    while True:
        for step in (power, 2 * power, 5 * power):
            if most <= step * most_labels:
                return step
        power *= 10


def _bar(x: float, y: float, width: float, height: float, kind: str) -> str:
    return (
        f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.2f}" '
        f'height="{height:.1f}"/>'
    )


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    place = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line class="{kind}" {place}/>'


def _text(
    x: float, y: float, words: str, kind: str = "label", anchor: str = "start"
) -> str:
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">'
        f"{words}</text>"
    )
