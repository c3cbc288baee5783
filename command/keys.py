"""``graphparity keys``: the keys that a ladder of capture sizes asks to record."""

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from graphparity.command.errors import CommandError
from graphparity.command.output import AsJson, print_json, write_file


class GraphMode(Enum):
    """The ``cudagraph_mode`` of engines with keys."""

    FULL_AND_PIECEWISE = "FULL_AND_PIECEWISE"
    FULL_DECODE_ONLY = "FULL_DECODE_ONLY"


def keys(
    max_num_seqs: Annotated[
        int, typer.Option(min=1, metavar="N", help="The most requests in a step.")
    ] = 8,
    capture_sizes: Annotated[
        str, typer.Option(metavar="N,N", help="cudagraph_capture_sizes, in tokens.")
    ] = "1,2,4,8",
    query_len: Annotated[
        int, typer.Option(min=1, metavar="N", help="Tokens a request: 1 + drafts.")
    ] = 1,
    mode: Annotated[
        GraphMode, typer.Option(metavar="MODE", help="Or FULL_DECODE_ONLY.")
    ] = GraphMode.FULL_AND_PIECEWISE,
    svg: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the ladder there.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the graph keys of a ladder, and what each step is padded by."""
    sizes = sizes_of(capture_sizes)
    from graphparity.command.ladder_picture import svg_of
    from graphparity.command.ladder_steps import LadderSteps
    from graphparity.command.ladder_table import print_ladder
    from graphparity.fastpath.capture_ladder import CaptureLadder
    from graphparity.reference.interface import CUDAGraphMode

    is_piecewise = mode is GraphMode.FULL_AND_PIECEWISE
    mixed_mode = CUDAGraphMode.PIECEWISE if is_piecewise else CUDAGraphMode.NONE
    ladder = CaptureLadder(sizes, max_num_seqs, mixed_mode)
    steps = LadderSteps.of(ladder, query_len)
    if svg is not None:
        write_file(svg, svg_of(steps), option="--svg")
    if as_json:
        print_json(steps.as_dict())
    else:
        print_ladder(steps)


def sizes_of(written: str) -> tuple[int, ...]:
    """The capture sizes of an option such as ``1,2,4,8``, ascending.

    Raises:
        CommandError: it holds something else than positive whole numbers.
    """
    words = [word.strip() for word in written.split(",")]
    wrong = [word for word in words if not (word.isdecimal() and int(word) > 0)]
    if wrong:
        raise CommandError(
            f"--capture-sizes {written!r} holds {wrong[0]!r}, which is no positive "
            "whole number: write token counts such as 1,2,4,8."
        )
    return tuple(sorted({int(word) for word in words}))
