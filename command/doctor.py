"""``graphparity doctor``: whether the plug-in can serve here, and what to do next."""

import typer

from graphparity.command.output import AsJson, console, print_json


def doctor(as_json: AsJson = False) -> None:
    """Say what is installed, which needs of the plug-in are met, and what to do next.

    Exit code 0: ready. 1: something is missing; the last line says what to do.
    """
    from graphparity.command.examination import examine

    examination = examine()
    if as_json:
        print_json(examination.as_dict())
    else:
        from graphparity.command.examination_table import print_examination

        print_examination(examination, console())
    raise typer.Exit(0 if examination.is_ready else 1)
