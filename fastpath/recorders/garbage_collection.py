"""No garbage is collected inside a capture.

A collection may free another CUDA graph that lies in a reference cycle, such as those
of a model state that was dropped. CUDA does not permit that while a stream captures,
and invalidates the capture; FlashAttention 3 then ends the process at its next launch.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Within, Python collects no garbage by itself."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
