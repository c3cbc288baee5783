"""How sub-commands print: a table for people, or JSON for programs."""

import json
from typing import Annotated, Any

import typer
from rich.console import Console

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
"""The option that every sub-command has."""


def console() -> Console:
    """Where a sub-command's answer goes; made late, so that tests may catch it."""
    return Console(highlight=False, soft_wrap=False)


def print_json(answer: Any) -> None:
    """Print plain data as one JSON document, and nothing else."""
    print(json.dumps(answer, indent=2))
