"""A cell of a sweep: one experiment, known by the hash of all that decides its result."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from thistle.experiments.errors import UserError
from thistle.experiments.experiment import Experiment
from thistle.experiments.runfolder import RunFolder
from thistle.experiments.settings import Value

ELSEWHERE = (
    "runtime.workers",
    "runtime.chunk",
    "runtime.ray-address",
    "runtime.max-clients-per-node",
    "stop.lost-rounds",
    "stop.lost-if-rejected",
)
"""Settings that do not change a result, beside those of `run.`."""


@dataclass(frozen=True)
class Cell:
    """A point of the sweep's grid."""

    axes: Mapping[str, Value]
    settings: Mapping[str, Value]
    """What the axes change in the experiment."""
    seed: int
    experiment: Experiment
    folder: RunFolder

    @property
    def id(self) -> str:
        return identity(self.experiment)

    @property
    def label(self) -> str:
        return " ".join([*(f"{axis}={show(value)}" for axis, value in self.axes.items()), f"seed={self.seed}"])

    def is_finished(self) -> bool:
        return self.folder.get_status().get("status") == "finished" and self.folder.summary.is_file()


def identity(experiment: Experiment) -> str:
    """Twelve digits of the hash of every setting that has a say in the result, defaults too."""
    keys = {
        key: value for key, value in experiment.flat().items() if not key.startswith("run.") and key not in ELSEWHERE
    }
    return hashlib.sha256(json.dumps(keys, sort_keys=True).encode()).hexdigest()[:12]


def folders(home: Path) -> dict[str, str]:
    """The cells' folders that are there already, by the id at the end of their names."""
    there = sorted(path.name for path in home.iterdir() if path.is_dir()) if home.is_dir() else []
    return {name.rpartition("-")[2]: name for name in there}


def place(
    home: Path,
    there: Mapping[str, str],
    experiment: Experiment,
    axes: Mapping[str, Value],
    settings: Mapping[str, Value],
) -> Cell:
    """The cell with its folder below `home`: an existing one, or a new one with a readable name."""
    digits = identity(experiment)
    words = "-".join(re.sub(r"[^\w.]+", "", show(value)) for value in axes.values())[:60].strip("-.")
    name = there.get(digits) or "-".join(filter(None, [words, f"s{experiment.seed}", digits]))
    run = experiment.run.model_copy(update={"name": name, "out": str(home)})
    named = experiment.model_copy(update={"run": run})
    return Cell(axes, settings, experiment.seed, named, RunFolder(home / name))


def distinct(cells: Sequence[Cell]) -> list[Cell]:
    """Each experiment once: points of the grid may share one."""
    first: dict[str, Cell] = {}
    for cell in cells:
        first.setdefault(cell.id, cell)
    return list(first.values())


def check_folder(cell: Cell) -> None:
    """What is in a cell's folder must be of that cell."""
    if cell.folder.experiment.is_file() and identity(cell.folder.load_experiment()) != cell.id:
        raise UserError(f"{cell.folder.experiment}: was changed and is no longer this cell's; remove the folder")


def show(value: Value) -> str:
    """A value as people write it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
