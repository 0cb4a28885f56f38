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


@contextmanager
def time_limit(seconds: float, mortal: bool) -> Iterator[None]:
    """Raise CutOff in the block after `seconds`; `mortal`: end this process if not even that helps.

    Signals reach a process's main thread only: elsewhere the second means is the only one.
    """
    if mortal:
        faulthandler.dump_traceback_later(seconds + GRACE, exit=True, file=sys.__stderr__ or sys.stderr)
    try:
        if threading.current_thread() is threading.main_thread():
            with _alarm(seconds):
                yield
        else:
            yield
    finally:
        if mortal:
            faulthandler.cancel_dump_traceback_later()


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """CutOff after `seconds`; another's alarm is put back afterwards."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise CutOff(f"cut off after {seconds:.6g} s")

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
