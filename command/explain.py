"""``graphparity explain``: the prover's verdict on a builder, and the line at fault."""

import json
from enum import Enum
from typing import Annotated

import typer

from graphparity.command.errors import CommandError
from graphparity.command.output import AsJson

EXAMPLE = "graphparity explain graphparity.conformance.builders.examples:Sound"


class HowThorough(Enum):
    """The prover's levels that judge."""

    SAMPLED = "sampled"
    ALL = "all"


def explain(
    context: typer.Context,
    builder: Annotated[
        str,
        typer.Argument(metavar="MODULE:BUILDER", help="Or a name of docs/builders.md."),
    ],
    query_len: Annotated[
        int, typer.Option(min=1, metavar="N", help="Tokens a request.")
    ] = 1,
    max_num_seqs: Annotated[
        int, typer.Option(min=1, metavar="N", help="The most requests.")
    ] = 8,
    max_model_len: Annotated[
        int, typer.Option(min=2, metavar="N", help="The longest sequence.")
    ] = 64,
    level: Annotated[
        HowThorough, typer.Option(metavar="LEVEL", help="sampled, or all keys.")
    ] = HowThorough.SAMPLED,
    as_json: AsJson = False,
) -> None:
    """Say whether a metadata builder may be recorded; 1 and the line if not."""
    from graphparity.command.explanation import judged, print_verdict, verdict_as_dict
    from graphparity.command.output import console, print_json

    if ":" not in builder:
        _refuse_sizes(context, builder)
    verdict = judged(builder, query_len, max_num_seqs, max_model_len, level.value)
    if as_json:
        print_json(json.loads(verdict.to_json()) | verdict_as_dict(verdict))
    else:
        print_verdict(verdict, console())
    raise typer.Exit(0 if verdict.recordable else 1)


def _refuse_sizes(context: typer.Context, name: str) -> None:
    """A builder of vLLM is judged in the deployment of its case."""
    given = [
        f"--{it.replace('_', '-')}"
        for it in ("query_len", "max_num_seqs", "max_model_len")
        if getattr(context.get_parameter_source(it), "name", "") == "COMMANDLINE"
    ]
    if given:
        raise CommandError(
            f"{', '.join(given)} cannot be chosen for {name!r}, which has sizes of its "
            "own: leave it out, or write MODULE:BUILDER."
        )
