"""The typer application, and ``main``, the console script.

A sub-command is a function in a module of its own, entered in ``app`` below with the
example that its ``--help`` shows. It prints to stdout, takes ``--json``, raises
``CommandError`` for what its caller can put right, and ``typer.Exit(1)`` for a "no".
"""

import importlib.metadata
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from graphparity.command.doctor import doctor
from graphparity.command.errors import INTERRUPTED, drop_output, report_error
from graphparity.command.explain import EXAMPLE as EXPLAIN_EXAMPLE
from graphparity.command.explain import explain
from graphparity.command.keys import keys

app = typer.Typer(
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


@dataclass
class CallSettings:
    """What holds for one call, whatever the sub-command."""

    debug: bool = False


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one call of ``graphparity`` and answer its exit code.

    Args:
        arguments: what follows the command's name; that of the process by default.
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    settings = CallSettings()
    try:
        code = _run(list(arguments), settings)
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        drop_output()
        return 1
    except Exception as error:  # noqa: BLE001  # the boundary: every error is told here
        called = shlex.join(arguments)
        return report_error(error, called, with_traceback=settings.debug)
    return code


def _run(arguments: list[str], settings: CallSettings) -> int:
    command = typer.main.get_command(app)
    answer: Any = command.main(
        args=arguments, prog_name="graphparity", standalone_mode=False, obj=settings
    )
    return answer if isinstance(answer, int) else 0


@app.callback(invoke_without_command=True)
def graphparity(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and end.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error.")
    ] = False,
) -> None:
    """Record vLLM's metadata builds once, replay them, prove them equal to eager."""
    context.obj.debug = debug
    if version:
        print(f"graphparity {_version()}")
    elif context.invoked_subcommand is None:
        print(context.get_help())


def _version() -> str:
    try:
        return importlib.metadata.version("graphparity")
    except importlib.metadata.PackageNotFoundError:
        return "of a source tree: it is not installed"


app.command(
    epilog="Example: graphparity keys --max-num-seqs 8 --capture-sizes 1,2,4,8"
)(keys)
app.command(epilog="Example: graphparity doctor")(doctor)
app.command(epilog=f"Example: {EXPLAIN_EXAMPLE}")(explain)
