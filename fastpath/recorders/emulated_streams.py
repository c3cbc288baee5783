"""Side streams of the emulated recorder: their forks and joins, and nothing else.

Outside of a capture all work runs where it is called. Within one a side stream says
whose order the recorded operations have, and refuses what would go wrong on a GPU
without a word: work on a stream that the capture knows nothing of runs at once.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from graphparity.fastpath.recorders.capture_session import CaptureSession
from graphparity.fastpath.recorders.refusals import COLD_STREAM, UNFORKED

_NAME = "a side stream"


class EmulatedSideStream:
    """The side stream `index` of a recorder.

    Args:
        index: its number.
        session: returns the capture in progress, or None.
    """

    def __init__(
        self, index: int, session: Callable[[], CaptureSession | None]
    ) -> None:
        self._index, self._session = index, session
        self._is_warm = False

    def fork(self) -> None:
        """Follow the work so far."""
        session = self._session()
        if session is not None:
            session.order.fork(self._index)

    @contextmanager
    def use(self) -> Iterator[None]:
        """Note recorded work as this stream's.

        Raises:
            CaptureError: it did not fork in this capture, or no warm-up used it.
        """
        session = self._session()
        if session is None:
            self._is_warm = True
            yield
            return
        self._require_forked(session)
        if not self._is_warm:
            session.refuse(_NAME, COLD_STREAM)
        outer, session.order.current = session.order.current, self._index
        try:
            yield
        finally:
            session.order.current = outer

    def join(self) -> None:
        """Let the current stream follow this one.

        Raises:
            CaptureError: it did not fork in this capture.
        """
        session = self._session()
        if session is not None:
            self._require_forked(session)
            session.order.join(self._index)

    def _require_forked(self, session: CaptureSession) -> None:
        if not session.order.is_forked(self._index):
            session.refuse(_NAME, UNFORKED)
