"""The periodic log line, from a thread of its own: a step pays nothing for it."""

import logging
import threading
import weakref
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)


class CounterLog:
    """Logs a line whenever it differs from the last one.

    Args:
        owner: kept by weak reference; the thread ends when it is gone.
        line: makes the line of the owner.
        interval_s: seconds between two looks; 0 looks never.
    """

    def __init__(
        self, owner: Any, line: Callable[[Any], str], interval_s: float
    ) -> None:
        self._owner = weakref.ref(owner, self._end)
        self._line, self._interval_s = line, interval_s
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._first = ""

    def start(self) -> None:
        """Begin, unless it has begun already or the interval is 0."""
        owner = self._owner()
        if self._thread is None and self._interval_s > 0 and owner is not None:
            self._first = self._line(owner)
            self._thread = threading.Thread(
                target=self._run, name="graphparity-log", daemon=True
            )
            self._thread.start()

    def _end(self, _: object) -> None:
        self._stop.set()

    def _run(self) -> None:
        last = self._first
        while not self._stop.wait(self._interval_s):
            owner = self._owner()
            if owner is None:
                return
            line = self._line(owner)
            del owner
            if line != last:
                logger.info("%s", line)
                last = line
