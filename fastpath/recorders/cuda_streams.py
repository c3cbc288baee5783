"""Side streams of the CUDA recorder.

A capture spreads to a side stream that waits for the capturing one. Work on a stream
that does not would run at once instead of being recorded, and CUDA would say nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from graphparity.fastpath.recorders.call_sites import call_site
from graphparity.fastpath.recorders.protocol import CaptureError
from graphparity.fastpath.recorders.refusals import UNFORKED


class CudaSideStream:
    """A CUDA stream beside the one that a recorder warms up and captures on."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()

    def fork(self) -> None:
        """Wait for the current stream; the stream is in its capture from then on."""
        self._stream.wait_stream(torch.cuda.current_stream())

    @contextmanager
    def use(self) -> Iterator[None]:
        """Make it the current stream.

        Raises:
            CaptureError: the current stream captures, and this one does not.
        """
        is_capturing = torch.cuda.is_current_stream_capturing()
        with torch.cuda.stream(self._stream):
            if is_capturing and not torch.cuda.is_current_stream_capturing():
                raise CaptureError(
                    operation="a side stream",
                    reason=UNFORKED.reason,
                    location=call_site(),
                    remedy=UNFORKED.remedy,
                )
            yield

    def join(self) -> None:
        """Let the current stream wait for this one."""
        torch.cuda.current_stream().wait_stream(self._stream)
