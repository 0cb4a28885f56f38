"""A client that hangs is cut off: by an exception where Python still runs, else by the end of its process."""

from __future__ import annotations

import faulthandler
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

GRACE = 5.0
"""Seconds between the exception and the end of the process."""


class CutOff(BaseException):
    """A client took too long. Not an `Exception`, so that no client's own handler swallows it."""


class Watchdog:
    """Ends this process when a client has hung for `limit` seconds where no exception reaches it.

    To set it takes as long as a small client (a thread is made for it), so that it is set again only after a while:
    whoever comes in between has a little less grace.
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


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise CutOff in the block after `seconds`. Signals reach a process's main thread only: elsewhere, do nothing."""
    if threading.current_thread() is threading.main_thread():
        with _alarm(seconds):
            yield
    else:
        yield


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """CutOff after `seconds`; another's alarm is put back afterwards."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise CutOff(f"cut off after {seconds:.6g} s (client.limit, client.timeout)")

    handler = signal.signal(signal.SIGALRM, ring)
    began = time.monotonic()
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, handler)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(left - (time.monotonic() - began), 1e-6), interval)
