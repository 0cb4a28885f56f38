"""Wake-ups between the threads of one process: a waiting thread is woken, instead of polling.

A simulation's server shares its process with the threads that serve its workers, a deployed one with the threads that
pull its replies. Without notifications, a waiting thread polls often.
"""

from __future__ import annotations

import threading

OFTEN = 0.004
"""Seconds between two looks where nobody has notified yet."""
SELDOM = 0.1
"""Seconds between two looks where somebody does."""


class Wakeup:
    """Notified by many, waited for by one."""

    def __init__(self) -> None:
        self._notified = threading.Event()
        self._used = False

    def notify(self) -> None:
        self._used = True
        self._notified.set()

    def wait(self) -> None:
        """Until somebody notifies, or it is time for another look. What happened since the last wait counts."""
        self._notified.wait(SELDOM if self._used else OFTEN)
        self._notified.clear()


REQUESTS = Wakeup()
"""There are messages for hosts."""
REPLIES = Wakeup()
"""There are replies."""
