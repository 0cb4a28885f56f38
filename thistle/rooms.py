"""Where the rooms are: beside this package in a checkout, inside it (`_app`) in an installed wheel."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
"""One thread a process: more give other bits, and on busy cores they cost time. Read when numpy is imported."""


def app_root() -> Path:
    """The folder that holds the rooms and the Flower app's pyproject.toml."""
    here = Path(__file__).resolve().parent
    bundled = here / "_app"
    return bundled if bundled.is_dir() else here.parent


def use_rooms() -> None:
    """Make `import exchange` and its like work in this process, before anybody else's module of that name."""
    root = str(app_root())
    sys.path[:] = [root, *(entry for entry in sys.path if entry != root)]
