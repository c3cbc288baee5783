"""``graphparity keys``: the keys that a ladder of capture sizes asks to record."""

from typing import Annotated

import typer

from graphparity.command.errors import CommandError
from graphparity.command.output import AsJson, print_json


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
    as_json: AsJson = False,
) -> None:
    """List the graph keys of a ladder, and what each step is padded by."""
    sizes = sizes_of(capture_sizes)
    from graphparity.command.ladder_steps import LadderSteps

    ladder = LadderSteps.of(sizes, max_num_seqs, query_len)
    if as_json:
        print_json(ladder.as_dict())
    else:
        from graphparity.command.ladder_table import print_ladder

        print_ladder(ladder)


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
