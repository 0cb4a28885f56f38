"""A copy of the Flower app for `flwr run`: works from any directory, from a checkout or a wheel."""

from __future__ import annotations

import shutil
from pathlib import Path

from thistle.rooms import ROOMS, app_root


def stage_app(target: Path) -> Path:
    """Copy the rooms and pyproject.toml into `target`."""
    root = app_root()
    target.mkdir(parents=True)
    for room in ROOMS:
        shutil.copytree(root / room, target / room, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    shutil.copy(root / "pyproject.toml", target / "pyproject.toml")
    return target
