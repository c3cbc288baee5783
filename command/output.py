"""How sub-commands print: a table for people, or JSON for programs."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from graphparity.command.errors import CommandError

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
"""The option that every sub-command has."""


def console() -> Console:
    """Where a sub-command's answer goes; made late, so that tests may catch it."""
    return Console(highlight=False, soft_wrap=False)


def counted(number: int, noun: str) -> str:
    """Such as ``1 key`` and ``2 keys``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def print_json(answer: Any) -> None:
    """Print plain data as one JSON document, and nothing else."""
    print(json.dumps(answer, indent=2))


def write_file(path: Path, text: str, *, option: str) -> None:
    """Write what an option asked for.

    Raises:
        CommandError: it cannot be written there.
    """
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise CommandError(
            f"{option} {path} cannot be written ({error.strerror}): name a file in a "
            "folder that exists and is yours."
        ) from error
