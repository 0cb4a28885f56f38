"""The exceptions whose text is meant for the user."""

from __future__ import annotations

from pathlib import Path


class UserError(Exception):
    """Something the user can fix: shown as one line, exit code 2, no traceback."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class RunFailed(Exception):
    """The run came to nothing, for a reason that it can name: shown as one line, exit code 1, resumable."""

    def __init__(self, message: str, folder: Path | None = None) -> None:
        super().__init__(message)
        self.folder = folder
        """The run folder, where there is one: its log.txt says more."""
