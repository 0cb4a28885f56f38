"""From what a person names to folders: a run, a sweep, or a folder that holds runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from thistle.deploy.submissions import folders_of
from thistle.experiments.errors import UserError

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
