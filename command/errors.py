"""What a sub-command tells of an error: one sentence, on stderr, with exit code 2."""

import os
import sys
import traceback

BAD_CALL = 2
"""Exit code of an error, as of a wrong option."""
INTERRUPTED = 130
"""Exit code of Ctrl-C, as a shell gives it."""

_EXTRA_OF = {
    "numpy": "",
    "torch": "",
    "hypothesis": "conformance",
    "jinja2": "conformance",
    "matplotlib": "conformance",
    "pytest": "conformance",
    "pytest_benchmark": "conformance",
    "cuda": "vllm",
    "vllm": "vllm",
}
"""Package -> the extra of graphparity that brings it; "" for what is always needed."""


class CommandError(Exception):
    """What the caller can put right; the message is one sentence with the remedy."""


def sentence_of(error: BaseException, called: str) -> str:
    """The error in one sentence.

    Args:
        error: what a sub-command raised.
        called: the arguments of the call, as typed.
    """
    if isinstance(error, CommandError):
        return str(error)
    if isinstance(error, ModuleNotFoundError) and (lacking := _lacking(error)):
        return lacking
    usage = getattr(error, "format_message", None)
    if usage is not None:
        return f"{_one_line(usage()).rstrip('.')}: see {_help_of(error)}."
    return (
        f"{type(error).__name__}: {_one_line(str(error)).rstrip('.')}, which is an "
        f"error of graphparity: graphparity --debug {called} shows where it was raised."
    )


def report_error(error: BaseException, called: str, *, with_traceback: bool) -> int:
    """Tell of the error on stderr; returns the exit code."""
    if with_traceback:
        traceback.print_exception(error)
    print(f"graphparity: {sentence_of(error, called)}", file=sys.stderr)
    return BAD_CALL


def drop_output() -> None:
    """Let nobody read what is left in stdout: its reader, such as ``head``, is gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _lacking(error: ModuleNotFoundError) -> str:
    package = (error.name or "").partition(".")[0]
    extra = _EXTRA_OF.get(package)
    if extra is None:
        return ""
    wanted = f"'graphparity[{extra}]'" if extra else "graphparity"
    return f"this needs {package}, which is not installed: pip install {wanted}."


def _help_of(error: BaseException) -> str:
    context = getattr(error, "ctx", None)
    return f"{context.command_path if context else 'graphparity'} --help"


def _one_line(text: str) -> str:
    return " ".join(text.split())
