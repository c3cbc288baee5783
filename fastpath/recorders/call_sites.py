"""Where in the caller's source an operation was asked for."""

import linecache
import sys
import traceback

_SKIPPED_PACKAGES = (
    "torch",
    "triton",
    "numpy",
    "contextlib",
    "functools",
    "graphparity.fastpath.recorders",
)
_SKIPPED_PREFIXES = tuple(f"{package}." for package in _SKIPPED_PACKAGES)


def call_site() -> str:
    """Return `file:line` of the innermost frame that is the caller's own code."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_skipped(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def raised_site(error: BaseException) -> tuple[str, str]:
    """Return (`file:line`, source line) of the caller's own code that raised."""
    own = "", ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        if not _is_skipped(frame.f_globals.get("__name__", "")):
            filename = frame.f_code.co_filename
            own = f"{filename}:{line}", linecache.getline(filename, line).strip()
    return own


def _is_skipped(module_name: str) -> bool:
    return module_name in _SKIPPED_PACKAGES or module_name.startswith(_SKIPPED_PREFIXES)
