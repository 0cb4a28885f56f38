"""A client that hangs is cut off: by an exception where Python still runs, else by the end of its process."""

from __future__ import annotations

import faulthandler
import signal
import sys
import threading
import time
from types import FrameType

GRACE = 5.0
"""Seconds between the exception and the end of the process."""


class CutOff(BaseException):
    """A client took too long. Not an `Exception`, so that no client's own handler swallows it."""


class Watchdog:
    """Ends this process when a client has hung for `limit` seconds where no exception reaches it.

    To set it takes as long as a small client (a thread is made for it), so that it is set again only after a while:
    a client that starts in between has a little less time.
    """

    def __init__(self, limit: float, mortal: bool) -> None:
        """`mortal`: this process may be ended; a user's own may not."""
        self.limit, self.mortal = limit, mortal
        self._set_at: float | None = None

    def __enter__(self) -> Watchdog:
        return self

    def __exit__(self, *_: object) -> None:
        if self._set_at is not None:
            faulthandler.cancel_dump_traceback_later()

    def watch(self) -> None:
        """Another client begins."""
        now = time.monotonic()
        if self.mortal and (self._set_at is None or now - self._set_at > GRACE / 2):
            faulthandler.dump_traceback_later(self.limit + GRACE, exit=True, file=sys.__stderr__ or sys.stderr)
            self._set_at = now


class Alarm:
    """Raises CutOff in a client that takes too long, one client after the other.

    Signals reach a process's main thread only: elsewhere it does nothing. Another's alarm is put back at the end.
    """

    def __enter__(self) -> Alarm:
        self._seconds = 0.0
        self._heard = threading.current_thread() is threading.main_thread()
        if self._heard:
            self._handler = signal.signal(signal.SIGALRM, self._ring)
            self._other = signal.setitimer(signal.ITIMER_REAL, 0.0)
            self._began = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._heard:
            return
        self.clear()
        signal.signal(signal.SIGALRM, self._handler)
        left, interval = self._other
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(left - (time.monotonic() - self._began), 1e-6), interval)

    def set(self, seconds: float) -> None:
        """A client starts, and has this many seconds."""
        self._seconds = seconds
        if self._heard:
            signal.setitimer(signal.ITIMER_REAL, seconds)

    def clear(self) -> None:
        """It has ended."""
        if self._heard:
            signal.setitimer(signal.ITIMER_REAL, 0.0)

    def _ring(self, number: int, frame: FrameType | None) -> None:
        raise CutOff(f"cut off after {self._seconds:.6g} s (client.limit, client.timeout)")
