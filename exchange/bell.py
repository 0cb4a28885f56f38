"""Bells between the threads of one process: whoever waits is woken, instead of looking again and again.

A simulation's server shares its process with the threads that serve its workers, a deployed one with the threads that
pull its replies. Where nobody rings, whoever waits looks often.
"""

from __future__ import annotations

import threading

OFTEN = 0.004
"""Seconds between two looks where nobody has rung yet."""
SELDOM = 0.1
"""Seconds between two looks where somebody rings."""


class Bell:
    """Rung by many, waited for by one."""

    def __init__(self) -> None:
        self._rung = threading.Event()
        self._used = False

    def ring(self) -> None:
        self._used = True
        self._rung.set()

    def wait(self) -> None:
        """Until it rings, or it is time for another look. What was rung since the last wait counts."""
        self._rung.wait(SELDOM if self._used else OFTEN)
        self._rung.clear()


REQUESTS = Bell()
"""There are messages for hosts."""
REPLIES = Bell()
"""There are replies."""
