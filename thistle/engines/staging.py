"""A copy of the Flower app for `flwr run`: works from any directory, from a checkout or a wheel."""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from pathlib import Path

import thistle
from thistle.experiments.experiment import Experiment, flatten_tables
from thistle.experiments.plugins import APP, ROOMS, STAGED, pinned_files
from thistle.experiments.runfolder import write_atomically

INCLUDED = re.compile(r"^fab-include = \[.*?^\]$", re.MULTILINE | re.DOTALL)
INSIDE = 'fab-include = ["/thistle/**/*.py"]'
COMPAT = "flower_compat"
NAME = "thistle-fl"
"""Of the app's folder, where Flower packs it."""


def stage_app(target: Path, compiled: bool = False) -> Path:
    """The app in `target`: pyproject.toml, and a `thistle` with the rooms inside, as in the wheel, and nothing else.

    `compiled`: with Python's compiled files, for processes of this machine that should not compile it all again.

    Not beside it, as in a checkout: Flower imports the two apps in two threads, and one that finds `thistle` half
    imported does not wait until its path is complete.
    """
    package = Path(thistle.__file__).parent
    for folder in (*(APP / room for room in ROOMS), package / COMPAT):
        copy = target / "thistle" / folder.name
        shutil.copytree(folder, copy, ignore=None if compiled else shutil.ignore_patterns("__pycache__", "*.pyc"))
    shutil.copy(package / "__init__.py", target / "thistle" / "__init__.py")
    project = INCLUDED.sub(INSIDE, (APP / "pyproject.toml").read_text(encoding="utf-8"), count=1)
    for room in ("server", "client"):
        project = project.replace(f'"flower_app:{room}"', f'"thistle.{room}.app:app"')
    (target / "pyproject.toml").write_text(project, encoding="utf-8")
    return target


def stage_code(app: Path, experiment: Experiment) -> None:
    """Add the modules of the user's that the experiment names, and their settings; other experiments' stay."""
    for (digits, name), content in pinned_files(experiment.flat()).items():
        folder = app / "thistle" / STAGED / digits
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / name, content)
    _declare(app / "pyproject.toml", experiment)


def _declare(project: Path, experiment: Experiment) -> None:
    """Flower refuses keys that the app does not declare: those of the user's own strategy are added."""
    text = project.read_text(encoding="utf-8")
    declared = flatten_tables(tomllib.loads(text)["tool"]["flwr"]["app"]["config"])
    for key in (key for key in experiment.flat() if key not in declared):
        section, _, name = key.partition(".")
        table = f"[tool.flwr.app.config.{section}]\n"
        text = text.replace(table, f'{table}{json.dumps(name)} = "default"\n', 1)
    write_atomically(project, text.encode())
