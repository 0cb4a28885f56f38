"""What a run folder holds, read for a page: tolerant of whatever is missing, damaged or still being written.

Nothing outside of the folder is read: a link that leads out of it counts as absent.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from thistle.experiments.errors import UserError
from thistle.experiments.experiment import flatten_tables, read_file
from thistle.experiments.runfolder import detection_parts
from thistle.results.sites import findings
from thistle.server.recording.sites import tally

MEASURES = (
    "accuracy",
    "loss",
    "train_loss",
    "attack_success",
    "lr",
    "seconds",
    "seconds_clients",
    "seconds_defence",
    "bytes_up",
    "bytes_down",
    "accepted",
    "filtered",
    "rejected",
    "failed",
)
QUIET = 10.0
"""Seconds without news after which we ask whether a run's process is alive."""
HUGE = 1e300
"""Beyond this, sums and differences in a chart would overflow."""
DEEP = 20
"""Levels of what is shown as it stands: settings and summaries have three."""
COUNTS = ("true_positive", "false_positive", "false_negative", "true_negative")
CLIENTS = ("worst", "p10", "mean")
DETECTION = tuple(f"{part}.{count}" for part in ("filter", "whole") for count in COUNTS)

QUALITY = ("macro_f1", "auc", "calibration_error")
"""Of all classes together."""


@dataclass(frozen=True)
class Run:
    """A run without its verdicts: everything that curves, bars and tables need."""

    id: str
    name: str
    status: str
    message: str
    experiment: Mapping[str, Any]
    columns: Mapping[str, Sequence[float | None]]
    """By measure, one value per round; `round`, the counts of `detection` (as `whole.true_positive`) and
    `client_accuracy.worst` among them."""
    robust: Mapping[str, Sequence[float | None]]
    """By attack, one value per round."""
    withstood: Mapping[str, float]
    """By attack, of the final model: robustness.json, or else summary.json."""
    by_class: Sequence[float | None]
    """Accuracy at the last evaluation, in the order of the classes."""
    quality: Mapping[str, Any]
    """At the last evaluation: macro-F1, AUC, sensitivity and similar figures, and the sites' own reports."""
    summary: Mapping[str, Any]
    sites: Mapping[str, Mapping[str, Any]]
    """Of a deployed run, what all rounds so far say of each site."""
    pointed_out: Sequence[str]
    """The sites that somebody should ask, in sentences."""
    deployed: bool = False
    """Whether real nodes took part, which keep to themselves who attacks."""
    changed: float = 0.0
    """When a round was last written, in seconds since 1970."""
    problems: Sequence[str] = field(default_factory=list)


def run_id(folder: Path) -> str:
    """A name for the folder that is safe in an address."""
    return hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:12]


def inside(folder: Path, name: str) -> Path | None:
    """The file of that name, if it is there and really in this folder."""
    try:
        path = (folder / name).resolve(strict=True)
    except (OSError, RuntimeError):
        return None
    return path if path.is_file() and path.is_relative_to(folder.resolve()) else None


def number(value: Any) -> float | None:
    """A finite number, or nothing."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < HUGE
    return value if good else None


def plain(value: Any, deep: int = DEEP) -> Any:
    """The value in a form that JSON can express: not finite, or nested too deep, is null; dates and such are text."""
    if isinstance(value, dict | list) and deep == 0:
        return None
    if isinstance(value, dict):
        return {str(key): plain(one, deep - 1) for key, one in value.items()}
    if isinstance(value, list):
        return [plain(one, deep - 1) for one in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int) else str(value)


def parse(text: bytes) -> dict[str, Any] | None:
    """A JSON object, or nothing; what some writers call NaN is null."""
    try:
        value = json.loads(text, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def read_object(folder: Path, name: str, problems: list[str]) -> dict[str, Any]:
    """A JSON file of the folder; empty where it is absent or not what it should be."""
    path = inside(folder, name)
    if path is None:
        if (folder / name).is_symlink():
            problems.append(f"{name}: is a link that leads out of the run folder, so it was not read")
        return {}
    value = parse(path.read_bytes())
    if value is None:
        problems.append(f"{name}: cannot be read as JSON")
    return plain(value) if value else {}


def read_run(folder: Path, name: str) -> Run:
    """The run as it is now."""
    problems: list[str] = []
    status = read_object(folder, "status.json", problems)
    summary = read_object(folder, "summary.json", problems)
    lines = _rounds(folder, problems)
    gone = status.get("status") in ("starting", "running") and is_abandoned(folder)
    if gone:
        status = {"status": "gone", "message": "its process exited unexpectedly; thistle resume continues it"}
    sites = _sites(lines)
    columns = {measure: [number(line.get(measure)) for line in lines] for measure in ("round", *MEASURES)}
    columns |= _detection(lines)
    columns |= _nested(lines, "client_accuracy", {f"client_accuracy.{name}": name for name in CLIENTS})
    return Run(
        id=run_id(folder),
        name=name,
        status=str(status.get("status", "no status")),
        message=str(status.get("message", "")),
        experiment=_experiment(folder, problems),
        columns={measure: values for measure, values in columns.items() if any(v is not None for v in values)},
        robust=_robust(lines),
        withstood=_withstood(folder, summary, problems),
        by_class=_by_class(lines),
        quality=_quality(lines),
        summary=_in_parts(summary),
        sites=sites,
        pointed_out=[f"{one.site} {one.text} {one.advice}" for one in findings({"sites": sites})],
        deployed=_is_deployed(lines),
        changed=_changed(folder),
        problems=problems,
    )


def _sites(lines: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Those that exist: damaged counts are left out."""
    outcomes = [{"sites": {name: _outcome(said) for name, said in one.items()}} for one in _dicts(lines, "sites")]
    return tally(outcomes)


def _outcome(said: Any) -> dict[str, Any]:
    """Counts and texts."""
    known = said if isinstance(said, dict) else {}
    return {
        key: value
        for key, value in known.items()
        if (key in ("step", "reason")) == isinstance(value, str) and (isinstance(value, str) or is_id(value))
    }


def _is_deployed(lines: Sequence[dict[str, Any]]) -> bool:
    """Whether the line says explicitly that detection is unknown: nothing else leaves it out."""
    return bool(lines) and all("detection" in line and line["detection"] is None for line in lines)


def _detection(lines: Sequence[dict[str, Any]]) -> dict[str, list[float | None]]:
    flat = [flatten_tables(detection_parts(one)) for one in _dicts(lines, "detection")]
    return {name: [number(one.get(name)) for one in flat] for name in DETECTION}


def _in_parts(summary: Mapping[str, Any]) -> dict[str, Any]:
    found = summary.get("detection")
    return {**summary, **({"detection": detection_parts(found)} if isinstance(found, dict) else {})}


def is_abandoned(folder: Path) -> bool:
    """Whether a run that calls itself running has no process; looks only where nothing was written for a while.

    The lock is tried for reading and let go at once: a run that starts in that very moment is not kept from it,
    because one that has just started has just written its status.
    """
    path = inside(folder, ".lock")
    if path is None or time.time() - _changed(folder) < QUIET:
        return False
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return False
    return True


def _changed(folder: Path) -> float:
    paths = (inside(folder, name) for name in ("status.json", "metrics.jsonl"))
    return max((path.stat().st_mtime for path in paths if path), default=0.0)


def _experiment(folder: Path, problems: list[str]) -> dict[str, Any]:
    path = inside(folder, "experiment.toml")
    try:
        return plain(read_file(path)) if path else {}
    except (UserError, RecursionError):
        problems.append("experiment.toml: cannot be read as TOML")
        return {}


def _rounds(folder: Path, problems: list[str]) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl by round; a last line without its end is still being written."""
    path = inside(folder, "metrics.jsonl")
    if path is None:
        if (folder / "metrics.jsonl").is_symlink():
            problems.append("metrics.jsonl: is a link that leads out of the run folder, so it was not read")
        return []
    rounds, damaged = {}, 0
    for text in path.read_bytes().split(b"\n")[:-1]:
        line = parse_line(text)
        if line is None:
            damaged += 1
        else:
            rounds[line["round"]] = line
    if damaged:
        problems.append(f"metrics.jsonl: {damaged} damaged line{'s' if damaged > 1 else ''} skipped")
    return [rounds[one] for one in sorted(rounds)]


def parse_line(text: bytes) -> dict[str, Any] | None:
    """An object with a round, or nothing."""
    value = parse(text)
    return value if value and is_id(value.get("round")) and value["round"] > 0 else None


def is_id(value: Any) -> bool:
    """Whether it can be the number of a round or a client."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


def _dicts(lines: Sequence[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """That field of every line; empty where it is something else, or absent."""
    return [line[name] if isinstance(line.get(name), dict) else {} for line in lines]


def _nested(lines: Sequence[dict[str, Any]], name: str, columns: Mapping[str, str]) -> dict[str, list[float | None]]:
    """Columns of numbers that lie below the field `name`."""
    of_lines = _dicts(lines, name)
    return {column: [number(one.get(key)) for one in of_lines] for column, key in columns.items()}


def _by_class(lines: Sequence[dict[str, Any]]) -> list[float | None]:
    """Of the last line that has it."""
    lists = (line.get("class_accuracy") for line in reversed(lines))
    return [number(value) for value in next((one for one in lists if isinstance(one, list)), [])]


def _quality(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of the last line that has it; anything that should be a number but is not becomes nothing."""
    known = (line for line in reversed(lines) if isinstance(line.get("sensitivity"), list))
    line: dict[str, Any] = next(known, {})
    found: dict[str, Any] = {name: number(line.get(name)) for name in QUALITY}
    for name in ("sensitivity", "specificity", "class_auc"):
        found[name] = _numbers(line.get(name))
    found["confusion"] = [_numbers(row) for row in _listed(line.get("confusion"))]
    sites = [site for site in _listed(line.get("site_scores")) if isinstance(site, dict) and is_id(site.get("client"))]
    names = ("client", "accuracy", "loss", "examples")
    return found | {"site_scores": [{name: number(site.get(name)) for name in names} for site in sites]}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _numbers(value: Any) -> list[float | None]:
    return [number(one) for one in _listed(value)]


def _robust(lines: Sequence[dict[str, Any]]) -> dict[str, list[float | None]]:
    of_lines = _dicts(lines, "robust")
    attacks = dict.fromkeys(attack for one in of_lines for attack in one)
    return {attack: [number(one.get(attack)) for one in of_lines] for attack in attacks}


def _withstood(folder: Path, summary: Mapping[str, Any], problems: list[str]) -> dict[str, float]:
    """Accuracies by attack; the other fields of robustness.json are no accuracies."""
    final = summary.get("final_robust")
    measured = read_object(folder, "robustness.json", problems)
    if measured.get("model_sha256") != summary.get("model_sha256"):  # the run went on after it
        measured = {}
    by_attack = measured if isinstance(measured.get("per_class"), dict) else final if isinstance(final, dict) else {}
    names = measured["per_class"] if by_attack is measured else by_attack
    values = {str(attack): number(by_attack.get(attack)) for attack in names}
    return {attack: value for attack, value in values.items() if value is not None}
