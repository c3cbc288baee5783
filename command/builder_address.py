"""The builder that an address ``MODULE:BUILDER`` names, made on a device.

What it names is the caller's own code, so whatever that raises is the caller's to put
right: it is told with its place, in one sentence.
"""

import importlib
import inspect
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from graphparity.command.errors import CommandError


def builder_at(address: str, device: torch.device) -> Any:
    """Make the builder of a factory, or of a class that needs a device alone.

    Raises:
        CommandError: the address leads nowhere, or to something that is no builder, or
            its code raises.
    """
    factory = _named(address)
    with told_as_the_callers(f"{address} raised"):
        builder = factory(*[device][: _num_needed(address, factory)])
    if not callable(getattr(builder, "build", None)):
        raise CommandError(
            f"{address} makes an object of type {type(builder).__qualname__}, which "
            "has no build: name a builder with build(common_prefix_len, "
            "common_attn_metadata)."
        )
    return builder


@contextmanager
def told_as_the_callers(begin: str) -> Iterator[None]:
    """Let whatever the caller's code raises be one sentence with its place.

    Raises:
        CommandError: instead.
    """
    try:
        yield
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        words = " ".join(str(error).split()).rstrip(".")
        raise CommandError(
            f"{begin} {type(error).__name__} ({words}) at {place.filename}:"
            f"{place.lineno}: correct it there, or see graphparity --debug explain."
        ) from error


def _named(address: str) -> Any:
    module_name, colon, attribute = address.partition(":")
    if not (module_name and colon and attribute):
        raise CommandError(
            f"{address!r} is no address: write MODULE:BUILDER, such as "
            "my_builder:make_builder, or a name of docs/builders.md such as gdn."
        )
    module = _imported(module_name)
    if not hasattr(module, attribute):
        raise CommandError(
            f"{module_name} has no {attribute!r}: it has {_builders_in(module)}."
        )
    named = getattr(module, attribute)
    if not callable(named):
        raise CommandError(
            f"{address} is of type {type(named).__qualname__}: name a function of a "
            "device that makes a builder, or the builder's class."
        )
    return named


def _imported(name: str) -> Any:
    sys.path.insert(0, "")
    try:
        importlib.invalidate_caches()
        with told_as_the_callers(f"importing {name} raised"):
            return importlib.import_module(name)
    except CommandError as error:
        cause = error.__cause__
        absent = cause.name if isinstance(cause, ModuleNotFoundError) else None
        # What the module itself imports in vain is told as its own error.
        if absent and f"{name}.".startswith(f"{absent}."):
            raise CommandError(
                f"no module {name!r} is installed or lies in this folder: go to its "
                "folder, or install it."
            ) from cause
        raise
    finally:
        sys.path.remove("")


def _builders_in(module: Any) -> str:
    own = [
        name
        for name, it in vars(module).items()
        if callable(it) and getattr(it, "__module__", "") == module.__name__
    ]
    return ", ".join(own[:8]) or "no function or class of its own"


def _num_needed(address: str, factory: Any) -> int:
    """How many arguments it cannot do without: none, or the device."""
    parameters = inspect.signature(factory).parameters.values()
    needed = [
        it.name
        for it in parameters
        if it.default is it.empty and it.kind not in {it.VAR_POSITIONAL, it.VAR_KEYWORD}
    ]
    if len(needed) > 1:
        raise CommandError(
            f"{address} needs {', '.join(needed)}: name a function of a device that "
            "makes it, such as def make_builder(device)."
        )
    return len(needed)
