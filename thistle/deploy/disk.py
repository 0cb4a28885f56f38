"""A watch on the disk: a node with a registered key could fill the store, so the gateway closes before it is full;
and strangers could fill the gateway's logs, so these are emptied when they are long."""

from __future__ import annotations

import os
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from thistle.deploy.service import Service

EVERY = 10.0
LONG = 64 * 2**20
"""Bytes beyond which a log is emptied."""


class Watch(ABC):
    """Called at every turn of the supervisor, it looks every few seconds."""

    _looked = 0.0

    def __call__(self) -> None:
        if time.monotonic() - self._looked >= EVERY:
            self._looked = time.monotonic()
            self.look()

    @abstractmethod
    def look(self) -> None:
        """Now."""


@dataclass
class DiskWatch(Watch):
    """Holds a service while less than `least` bytes are free."""

    folder: Path
    least: int
    service: Service
    say: Callable[[str], None]

    def look(self) -> None:
        free = shutil.disk_usage(self.folder).free
        if (free < self.least) == self.service.on_hold:
            return
        self.service.on_hold = free < self.least
        what = "is closed until there is more space" if self.service.on_hold else "is open again"
        self.say(f"{free / 2**30:.1f} GiB are free at {self.folder}: the {self.service.name} {what}")


@dataclass
class LogWatch(Watch):
    """Empties logs that have become long; their writers append, and so continue at the start."""

    logs: Sequence[Path]
    say: Callable[[str], None]

    def look(self) -> None:
        for log in self.logs:
            if log.is_file() and (size := log.stat().st_size) > LONG:
                os.truncate(log, 0)
                self.say(f"{log}: emptied; it had {size / 2**20:.0f} MiB")
