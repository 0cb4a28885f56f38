"""Folders in which one process works at a time; the system lets go for one that dies, however it dies."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from thistle.experiments.errors import UserError

LOCK = ".lock"


@contextmanager
def holding(folder: Path, taken: str) -> Iterator[None]:
    """Hold the folder, or say in these words that somebody else does."""
    with (folder / LOCK).open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"{folder}: {taken}") from None
        yield


def is_held(folder: Path) -> bool:
    """Whether a living process holds it."""
    try:
        with (folder / LOCK).open("rb") as file:  # a look disturbs nobody but one who starts in this very moment
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
