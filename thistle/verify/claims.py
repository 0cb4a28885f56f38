"""What is claimed: an experiment, the model and the accuracy that it gave, and where that was.

A run folder claims it, and so does what is kept of one: experiment.toml, summary.json and environment.json. An entry of
the leaderboard claims it for each of its cells and seeds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thistle.experiments.errors import UserError
from thistle.experiments.experiment import Experiment
from thistle.experiments.runfolder import RunFolder, read_json, read_lines
from thistle.leaderboard.entries import read_entry
from thistle.report.sources import find_folder, runs_below

KEPT = ("experiment.toml", "summary.json", "environment.json")
"""A run that is named by one of its files."""


@dataclass(frozen=True)
class Claim:
    """One run's."""

    label: str
    experiment: Experiment
    model_sha256: str
    accuracy: float
    """`final_accuracy`."""
    environment: Mapping[str, Any]
    """environment.json; empty: it is not said."""


def read_claims(source: str, out: str, cell: str, seed: int | None) -> list[Claim]:
    """Those of a run, of a folder of runs, or of a leaderboard's entry, of which `cell` and `seed` choose some."""
    path = Path(source).expanduser()
    if path.is_file() and path.name not in KEPT:
        return _of_entry(path, cell, seed)
    source = str(path.parent) if path.is_file() else source
    if cell or seed is not None:
        raise UserError(
            f"{'--cell' if cell else '--seed'}: belongs to an entry of the leaderboard; name the run instead"
        )
    folders = runs_below(folder := find_folder(source, out))
    if not folders:
        raise UserError(f"{source}: neither a run folder (with experiment.toml) nor an entry of the leaderboard")
    found = [RunFolder(one) for one in folders]
    finished = [one for one in found if one.summary.is_file()]
    if not finished:
        raise UserError(f"{source}: has no summary.json: only a run that has finished claims anything")
    return [_of_run(one, folder) for one in finished]


def _of_run(folder: RunFolder, above: Path) -> Claim:
    summary = _read(folder.summary)
    label = folder.path.name if folder.path == above else str(folder.path.relative_to(above))
    deployed = any("detection" in line and line["detection"] is None for line in read_lines(folder.metrics))
    if deployed or summary.get("detection", {}) is None:
        raise UserError(
            f"{folder.path}: real nodes trained this run, with their own data and faults, so it cannot be repeated"
        )
    environment = _read(folder.environment) if folder.environment.is_file() else {}
    try:
        return Claim(
            label,
            folder.load_experiment(),
            str(summary["model_sha256"]),
            float(summary["final_accuracy"]),
            environment,
        )
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{folder.summary}: does not say model_sha256 and final_accuracy") from None


def _read(path: Path) -> dict[str, Any]:
    """A file that somebody may have written by hand."""
    try:
        return dict(read_json(path))
    except (TypeError, ValueError):
        raise UserError(f"{path}: is not a JSON object") from None


def _of_entry(path: Path, cell: str, seed: int | None) -> list[Claim]:
    entry = read_entry(path)
    known = [one["cell"] for one in entry["cells"]]
    cell = entry["worst"].get(cell, cell)  # 0.3: the worst case at that share
    if cell and cell not in known:
        raise UserError(f"--cell {cell}: {path} has {', '.join([*entry['worst'], *known])}")
    claims = [
        claim
        for one in entry["cells"]
        if cell in ("", one["cell"])
        for claim in _of_cell(entry, one)
        if seed in (None, claim.experiment.seed)
    ]
    if not claims:
        raise UserError(f"--seed {seed}: {path} has no such run")
    return claims


def _of_cell(entry: Mapping[str, Any], cell: Mapping[str, Any]) -> Iterator[Claim]:
    for run in cell["runs"]:
        keys = {**entry["experiment"], **cell["settings"], "seed": run["seed"]}
        label = f"{entry['defence']}, cell {cell['cell']}, seed {run['seed']}"
        environment = entry["environments"][run["environment"]]
        yield Claim(label, Experiment.of(keys), run["model_sha256"], run["final_accuracy"], environment)
