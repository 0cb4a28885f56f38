"""From what a person names to folders: a run, a sweep, or a folder that holds runs."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from thistle.deploy.submissions import folders_of
from thistle.experiments.errors import UserError
from thistle.sweeps.cells import show

DEEP = 3
"""Levels below a folder at which runs are looked for."""


def is_run(folder: Path) -> bool:
    return (folder / "experiment.toml").is_file()


def is_sweep(folder: Path) -> bool:
    return (folder / "sweep.json").is_file()


def find_folder(name: str, out: str) -> Path:
    """A path, or the name of something below `out`, or of a run that a server of this machine has."""
    for path in (Path(name).expanduser(), Path(out).expanduser() / name, *folders_of(name)):
        if path.is_dir():
            return path.resolve()
    raise UserError(f"{name}: no folder there, nor at {Path(out) / name}")


def runs_below(folder: Path) -> list[Path]:
    """The run folders in a folder, itself among them; links are not followed."""
    found = []
    for here, folders, files in os.walk(folder, followlinks=False):
        path = Path(here)
        if "experiment.toml" in files and is_run(path):
            found.append(path)
            folders.clear()
        if len(path.relative_to(folder).parts) >= DEEP:
            folders.clear()
        folders[:] = sorted(one for one in folders if not one.startswith("."))
    return found


def sort_out(names: Sequence[str], out: str) -> tuple[list[Path], list[Path]]:
    """Runs and sweeps, each once, in the order in which they were named."""
    runs: list[Path] = []
    sweeps: list[Path] = []
    for name in names:
        folder = find_folder(name, out)
        if is_sweep(folder):
            sweeps.append(folder)
            continue
        below = runs_below(folder)
        if not below:
            raise UserError(f"{name}: neither a run folder (with experiment.toml) nor a sweep, and none in it")
        runs += below
    return list(dict.fromkeys(runs)), list(dict.fromkeys(sweeps))


def distinct_names(folders: Sequence[Path]) -> list[str]:
    """Folder names, with as many of the folders around them as it takes to tell them apart."""
    parts = 1
    while True:
        names = ["/".join(folder.parts[-parts:]) for folder in folders]
        if len(set(names)) == len(names) or parts >= max((len(one.parts) for one in folders), default=1):
            return names
        parts += 1


def titles(folders: Sequence[Path]) -> list[str]:
    """What people call these runs: a sweep's cells by their values and seed, all others by their folders."""
    names = distinct_names(folders)
    called = [_cells(folder.parent).get(folder.name, name) for folder, name in zip(folders, names, strict=True)]
    return called if len(set(called)) == len(called) else names


def _cells(home: Path) -> Mapping[str, str]:
    """The titles of a sweep's cells by their folders; none if it cannot be read or is no sweep."""
    plan = home / "sweep.json"
    try:
        return _titles(plan, plan.stat().st_mtime_ns)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


@lru_cache(maxsize=8)
def _titles(plan: Path, changed: int) -> Mapping[str, str]:
    """`changed`: for the cache, when the file was written; a live page asks twice a second."""
    cells = json.loads(plan.read_text(encoding="utf-8"))["cells"]
    return {
        str(cell["folder"]): ", ".join([*map(show, cell["axes"].values()), f"seed {cell['seed']}"]) for cell in cells
    }
