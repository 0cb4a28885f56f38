"""A copy of the Flower app for `flwr run`: works from any directory, from a checkout or a wheel."""

from __future__ import annotations

import shutil
from pathlib import Path

import thistle
from thistle.experiments.experiment import Experiment
from thistle.experiments.plugins import APP, ROOMS, STAGED, pinned_files
from thistle.experiments.runfolder import write_atomically

INCLUDE = "fab-include = ["
COMPAT = "flower_compat"


def stage_app(target: Path) -> Path:
    """Copy the rooms, pyproject.toml, and of `thistle` itself what the rooms need of it, into `target`."""
    package = Path(thistle.__file__).parent
    folders = {APP / room: target / room for room in ROOMS} | {package / COMPAT: target / "thistle" / COMPAT}
    for source, copy in folders.items():
        shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    shutil.copy(APP / "pyproject.toml", target / "pyproject.toml")
    shutil.copy(package / "__init__.py", target / "thistle" / "__init__.py")
    return target


def stage_code(app: Path, experiment: Experiment) -> None:
    """Add the modules of the user's that the experiment names; other experiments' stay."""
    files = pinned_files(experiment.flat())
    for (digits, name), content in files.items():
        (app / STAGED / digits).mkdir(parents=True, exist_ok=True)
        write_atomically(app / STAGED / digits / name, content)
    project = app / "pyproject.toml"
    text = project.read_text(encoding="utf-8")
    pattern = f'"/{STAGED}/**/*.py"'
    if files and pattern not in text:  # Flower refuses a pattern that matches nothing
        write_atomically(project, text.replace(INCLUDE, f"{INCLUDE}{pattern}, ", 1).encode())
