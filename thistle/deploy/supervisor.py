"""Keeps services alive until somebody says stop, and says what it does."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from thistle.deploy.service import GRACE, Service

LOOK = 0.2
"""Seconds between two looks at the services."""


class Supervisor:
    """Starts services in order, restarts what dies or no longer answers, ends all of them on exit."""

    def __init__(self, services: Sequence[Service], say: Callable[[str], None]) -> None:
        self.services, self.say = list(services), say
        self.chores: list[Callable[[], None]] = []
        """Done at every look, besides."""

    def __enter__(self) -> Supervisor:
        for service in self.services:
            self.say(f"$ {service.shown}")
        return self

    def __exit__(self, *_: object) -> None:
        for service in reversed(self.services):
            service.ask_to_end()
        deadline = time.monotonic() + GRACE
        for service in reversed(self.services):
            service.end(max(deadline - time.monotonic(), 0.0))

    def look(self) -> None:
        """Once around."""
        for service in self.services:
            for line in service.look():
                self.say(line)
        for chore in self.chores:
            chore()

    @property
    def all_ready(self) -> bool:
        return all(service.ready for service in self.services if service.needed)

    def run(self, when_ready: Callable[[], None]) -> None:
        """For ever; calls `when_ready` once everything has answered."""
        told = False
        while True:
            self.look()
            if self.all_ready and not told:
                told = True
                when_ready()
            time.sleep(LOOK)
