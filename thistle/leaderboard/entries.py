"""An entry of the leaderboard: what one search of `thistle stress` found of one defence, so that anybody can verify it.

docs/leaderboard/digits-rofsl.json
  defence, suite, plan            what was tried, and how long
  experiment                      every setting but those of the attack, the seed, and where it ran
  environments                    on which machines, with which code
  worst                           by share of attackers: the cell with the worst case
  cells                           one per line: the attack's settings, the figures, each seed's model
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from thistle.experiments.errors import UserError
from thistle.experiments.experiment import Experiment
from thistle.experiments.plugins import is_own
from thistle.experiments.runfolder import RunFolder, read_json, write_atomically
from thistle.sweeps.cells import ELSEWHERE, identity
from thistle.worst_case.document import STRESS

FORMAT = 1
NOBODY = "none"
FIGURES = ("accuracy", "accuracy_error", "success", "success_error")
LEFT_OUT = (*ELSEWHERE, "task.data-dir", "seed")
"""Settings that belong to a machine, or to a run."""
KEPT = ("python", "packages", "cpu", "capability", "platform", "app_sha256")
"""Of environment.json; and the devices of its hosts."""
Entry = dict[str, Any]


def make_entry(home: Path, defence: str = "") -> Entry:
    """What the search in this folder found; it must have ended."""
    document = _document(home)
    experiment = _runs(home, document["no_attack_folders"])[0].load_experiment()
    if is_own(experiment.strategy.name):
        raise UserError(f"{home}: strategy.name = {experiment.strategy.name}: it is your own; add it to Thistle first")
    base = {key: value for key, value in experiment.flat().items() if _lasting(key) and not key.startswith("attack.")}
    environments: list[dict[str, Any]] = []
    cells = [_cell(home, row, base, environments) for row in _rows(document)]
    worst = {
        _name(row["suite"], row["fraction"]): _name(row["suite"], row["fraction"], row["attack"])
        for row in document["results"]
    }
    head = {name: document[name] for name in ("suite", "suite_digest", "fractions", "seeds", "budget", "plan")}
    head["plan"] = {name: document["plan"][name] for name in ("rounds", "seeds", "per_kind", "shortened")}
    made = {"format": FORMAT, "defence": defence or experiment.strategy.name, **head, "experiment": base}
    return {**made, "environments": environments, "worst": worst, "cells": cells}


def _document(home: Path) -> dict[str, Any]:
    path = home / STRESS
    if not path.is_file():
        raise UserError(f"{home}: no {STRESS} there; name a folder that thistle stress has made")
    document: dict[str, Any] = read_json(path)
    if "results" not in document:
        raise UserError(f"{home}: the search has not ended; continue it with the same command")
    if document["failed"]:
        raise UserError(
            f"{home}: {len(document['failed'])} runs failed; the same thistle stress command tries them again"
        )
    document["no_attack_folders"] = [path.name for path in _without_attack(home)]
    return document


def _without_attack(home: Path) -> list[Path]:
    """The runs that every search has, by seed."""
    runs = {}
    for path in sorted(home.glob("*/experiment.toml")):
        experiment = RunFolder(path.parent).load_experiment()
        if experiment.attack.kind == NOBODY:
            runs[experiment.seed] = path.parent
    if not runs:
        raise UserError(f"{home}: the runs without an attack are gone")
    return [runs[seed] for seed in sorted(runs)]


def _rows(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """No attack, then each attack at its worst settings; of equal ones those with the most seeds."""
    nobody = {"suite": "", "fraction": 0.0, "attack": NOBODY, "label": "no attack", **document["no_attack"]}
    yield {**nobody, "folders": document["no_attack_folders"]}
    chosen: dict[str, dict[str, Any]] = {}
    for row in document["candidates"]:
        if row.get("accuracy") is None:
            continue
        name = _name(row["suite"], row["fraction"], row["attack"])
        if name not in chosen or _furthest(row) < _furthest(chosen[name]):
            chosen[name] = row
    yield from chosen.values()


def _furthest(row: Mapping[str, Any]) -> tuple[int, float]:
    harm = -row["success"] if row["suite"] == "backdoor" else row["accuracy"]
    return -len(row["accuracy_by_seed"]), harm


def _cell(home: Path, row: Mapping[str, Any], base: Mapping[str, Any], environments: list[Any]) -> dict[str, Any]:
    folders = _runs(home, row["folders"])
    settings = _settings(folders[0].load_experiment(), base)
    runs = [_run(folder, base, settings, environments) for folder in folders]
    figures = {name: row[name] for name in FIGURES if row.get(name) is not None}
    words = {name: row[name] for name in ("suite", "fraction", "attack", "label")}
    name = _name(row["suite"], row["fraction"], row["attack"])
    return {"cell": name, **words, **figures, "settings": settings, "runs": runs}


def _runs(home: Path, names: Sequence[str]) -> list[RunFolder]:
    """Those that have finished: a seed that was not needed may not be there."""
    found = [RunFolder(home / name) for name in names]
    return [folder for folder in found if folder.summary.is_file()]


def _settings(experiment: Experiment, base: Mapping[str, Any]) -> dict[str, Any]:
    """What makes this cell's experiment of the entry's."""
    return {key: value for key, value in experiment.flat().items() if _lasting(key) and base.get(key) != value}


def _run(
    folder: RunFolder, base: Mapping[str, Any], settings: Mapping[str, Any], environments: list[Any]
) -> dict[str, Any]:
    experiment, summary = folder.load_experiment(), read_json(folder.summary)
    again = Experiment.of({**base, **settings, "seed": experiment.seed, "task.data-dir": experiment.task.data_dir})
    if identity(again) != identity(experiment):
        raise UserError(f"{folder.path}: differs from the folders beside it in more than its seed")
    there = read_json(folder.environment)
    environment = {name: there[name] for name in KEPT}
    environment["hosts"] = [{"device": one} for one in sorted({host["device"] for host in there["hosts"]})]
    if environment not in environments:
        environments.append(environment)
    claims = {name: summary[name] for name in ("final_accuracy", "model_sha256")}
    return {"seed": experiment.seed, **claims, "environment": environments.index(environment)}


def _lasting(key: str) -> bool:
    return not key.startswith("run.") and key not in LEFT_OUT


def _name(suite: str, fraction: float, attack: str = "") -> str:
    """A cell's: 0.3/ipm; of the backdoor suite backdoor/0.3/dba. Without an attack the worst case is meant."""
    if not fraction:
        return NOBODY
    return "/".join(filter(None, ["backdoor" if suite == "backdoor" else "", f"{fraction:g}", attack]))


def board_of(entry: Mapping[str, Any]) -> str:
    """Entries of one board can be compared: everything except the defence is the same."""
    shared = {key: value for key, value in entry["experiment"].items() if not key.startswith("strategy.")}
    plain = json.dumps([entry["suite"], shared], sort_keys=True)
    return hashlib.sha256(plain.encode()).hexdigest()[:8]


def write_entry(entry: Entry, folder: Path) -> Path:
    """One cell per line; an entry of another experiment is not overwritten."""
    words = re.sub(r"[^\w.]+", "-", f"{entry['experiment']['task.name']} {entry['defence']}").strip("-").lower()
    path = folder / f"{words}.json"
    if path.is_file() and read_entry(path)["experiment"] != entry["experiment"]:
        raise UserError(f"{path}: is of another experiment; give this one a name with --as")
    lines = ",\n".join(f"    {json.dumps(cell, ensure_ascii=False)}" for cell in entry["cells"])
    head = json.dumps({**entry, "cells": []}, indent=2, ensure_ascii=False)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (head.removesuffix("[]\n}") + f"[\n{lines}\n  ]\n}}\n").encode())
    return path


def read_entry(path: Path) -> Entry:
    """As it was written, checked as far as others rely on it."""
    try:
        entry: Entry = json.loads(path.read_text(encoding="utf-8"))
        if entry["format"] != FORMAT:
            raise ValueError(f"format {entry['format']}, not {FORMAT}")
        Experiment.of(entry["experiment"])
        for cell in entry["cells"]:
            cell["cell"], cell["label"], dict(cell["settings"]), float(cell["accuracy"])
            for run in cell["runs"]:
                int(run["seed"]), str(run["model_sha256"]), float(run["final_accuracy"])
                dict(entry["environments"][run["environment"]])
        if not {*entry["worst"].values()} <= {cell["cell"] for cell in entry["cells"]}:
            raise ValueError("worst names a cell that does not exist")
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, UserError) as error:
        raise UserError(f"{path}: cannot be read as an entry of the leaderboard: {error!r}") from None
    return entry


def read_entries(folder: Path) -> dict[Path, Entry]:
    """All of a folder, by file."""
    return {path: read_entry(path) for path in sorted(folder.glob("*.json"))}
