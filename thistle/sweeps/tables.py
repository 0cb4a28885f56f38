"""A sweep's results as files: sweep.csv (one row per cell, no times), times.csv, sweep.md (mean ± standard error)."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thistle.experiments.runfolder import detection_parts, read_json, write_atomically, write_json
from thistle.experiments.settings import Value
from thistle.report.statistics import mean_and_error, over_seeds
from thistle.results.shown import FIGURES as MEASURED
from thistle.results.shown import Figure, lifespan, mean_of
from thistle.sweeps.cells import Cell, show
from thistle.sweeps.expectations import Finding
from thistle.sweeps.files import Axis, Sweep

FORMAT = 1
FIGURES = ("ended", "rounds", "last_accuracy", "max_accuracy", "final_accuracy", "evaluations_averaged")
BACKDOOR = ("attack_success", "backdoor_lifespan", "backdoor_lifespan_reason")
CLIENTS = ("worst", "p10", "mean")
DETECTION = ("precision", "recall", "honest_excluded")
COUNTS = ("bytes_up", "bytes_down", "rejected", "failed", "model_sha256")
TIMES = ("id", "seconds", "seconds_per_round", "start_up", "seconds_defence")


ABOUT = (
    "In %; a lifespan is in rounds, over the seeds in which it ended. Accuracies by class and by client are from the "
    "last evaluation; precision, recall and honest excluded are over all rounds. Seconds are in times.csv."
)
FURTHER = [figure for figure in MEASURED if figure.unit != "seconds"]


@dataclass(frozen=True)
class Result:
    """A cell with its summary; None where it has not finished."""

    cell: Cell
    summary: Mapping[str, Any] | None

    @classmethod
    def of(cls, cell: Cell) -> Result:
        return cls(cell, read_json(cell.folder.summary) if cell.is_finished() else None)

    @property
    def figures(self) -> dict[str, float] | None:
        """What tables and expectations compare: accuracy, and accuracy under each attack at test time; both as means
        of the run's last evaluations."""
        if self.summary is None:
            return None
        return {"accuracy": self.summary["final_accuracy"], **self.summary.get("final_robust", {})}


def write_plan(sweep: Sweep, cells: Sequence[Cell], home: Path) -> None:
    """sweep.json: which cells there are and where, from the start."""
    document = {
        "format": FORMAT,
        "name": sweep.name,
        "about": sweep.about,
        "axes": {axis.name: list(axis.values) for axis in sweep.axes},
        "seeds": list(sweep.seeds),
        "columns": sweep.columns,
        "defences": _defences(sweep),
        "cells": [
            {
                "id": cell.id,
                "folder": cell.folder.path.name,
                "axes": dict(cell.axes),
                "seed": cell.seed,
                "settings": dict(cell.settings),
            }
            for cell in cells
        ],
    }
    write_json(home / "sweep.json", document)


def _defences(sweep: Sweep) -> str | None:
    """The axis along which strategies change, whatever it is called."""
    changes = [axis.name for axis in sweep.axes if any("strategy.name" in settings for settings in axis.settings)]
    return changes[0] if changes else None


def make_rows(sweep: Sweep, results: Sequence[Result]) -> list[dict[str, Any]]:
    """One row per cell, in the order of the grid; None where a cell has no such figure."""
    attacks = sorted({name for result in results for name in (result.summary or {}).get("final_robust", {})})
    classes = max((len((result.summary or {}).get("class_accuracy", ())) for result in results), default=0)
    return [_row(sweep, result, attacks, classes) for result in results]


def _row(sweep: Sweep, result: Result, attacks: Sequence[str], classes: int) -> dict[str, Any]:
    cell, found = result.cell, result.summary or {}
    by_class = dict(enumerate(found.get("class_accuracy", ())))
    detection = detection_parts(found.get("detection") or {})
    status = "finished" if result.summary else cell.folder.get_status().get("status", "waiting")
    return {
        "id": cell.id,
        **{axis.name: cell.axes[axis.name] for axis in sweep.axes},
        "seed": cell.seed,
        "status": status,
        **{name: found.get(name) for name in FIGURES},
        **{f"robust.{name}": found.get("final_robust", {}).get(name) for name in attacks},
        **{name: found.get(name) for name in BACKDOOR},
        **{f"client_accuracy.{name}": found.get("client_accuracy", {}).get(name) for name in CLIENTS},
        **{name: detection.get("whole", {}).get(name) for name in DETECTION},
        **{f"filter_{name}": detection.get("filter", {}).get(name) for name in DETECTION},
        **{name: found.get(name) for name in COUNTS},
        **{f"class_accuracy.{number}": by_class.get(number) for number in range(classes)},
    }


def write_csv(sweep: Sweep, results: Sequence[Result], home: Path) -> None:
    """sweep.csv: the same bytes however often the sweep was interrupted."""
    rows, axes = make_rows(sweep, results), {axis.name for axis in sweep.axes}
    lines = [[show(value) if name in axes else _known(value) for name, value in row.items()] for row in rows]
    _write_rows(home / "sweep.csv", [list(rows[0]), *lines])


def write_times(results: Sequence[Result], start_ups: Mapping[str, float], home: Path) -> None:
    """times.csv; how long a cell took to start is known to the command that started it, and kept from then on."""
    path = home / "times.csv"
    before: dict[str, str] = {}
    if path.is_file():
        with path.open(encoding="utf-8", newline="") as file:
            before = {row["id"]: row["start_up"] for row in csv.DictReader(file) if row.get("start_up")}
    known = {**before, **{name: f"{seconds:.2f}" for name, seconds in start_ups.items()}}
    rows: list[list[Any]] = [list(TIMES)]
    for name, found in {result.cell.id: result.summary for result in results}.items():
        if found:
            defence = found.get("seconds_defence")
            took = [f"{found['seconds']:.2f}", f"{found['seconds_per_round']:.4f}", known.get(name, "")]
            rows.append([name, *took, "" if defence is None else f"{defence:.4f}"])
    _write_rows(path, rows)


def _known(value: Any) -> Any:
    return "" if value is None else value


def _write_rows(path: Path, rows: Sequence[Sequence[Any]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    write_atomically(path, text.getvalue().encode())


@dataclass(frozen=True)
class Grid:
    """Results with one axis across and the others down."""

    sweep: Sweep
    results: Sequence[Result]

    @property
    def across(self) -> Axis | None:
        """The axis that the file names, else the last, if there are two or more."""
        axes = self.sweep.axes
        named = [axis for axis in axes if axis.name == self.sweep.columns]
        return (named or list(axes[-1:]))[0] if len(axes) > 1 or named else None

    @property
    def down(self) -> list[Axis]:
        return [axis for axis in self.sweep.axes if axis is not self.across]

    @property
    def metrics(self) -> list[str]:
        """What was measured in any of the cells."""
        return list(dict.fromkeys(name for result in self.results for name in result.figures or ()))

    @property
    def averaged(self) -> str:
        """What the metrics are, in words."""
        return mean_of(result.summary.get("evaluations_averaged") for result in self.results if result.summary)

    def further(self) -> tuple[list[str], list[list[str]]]:
        """Header and rows of everything else that was measured: one row per point of the grid. No seconds: the same
        sweep gives the same table."""
        axes = [axis.name for axis in self.sweep.axes]
        points = list(dict.fromkeys(tuple((name, result.cell.axes[name]) for name in axes) for result in self.results))
        columns = {figure.name: [self._spread(dict(point), figure) for point in points] for figure in FURTHER}
        known = {name: column for name, column in columns.items() if set(column) != {"–"}}
        names = [[show(value) for _, value in point] for point in points]
        rows = [[*name, *cells] for name, *cells in zip(names, *known.values(), strict=True)]
        return [*axes, *known], rows

    def _spread(self, axes: Mapping[str, Value], figure: Figure) -> str:
        """Mean ± standard error; of a lifespan that no seed has, why."""
        summaries = [result.summary for result in self.results if result.summary and result.cell.axes == axes]
        values = [value for summary in summaries if (value := figure.of(summary)) is not None]
        if not values and figure.unit == "rounds":
            return ", ".join(sorted({lifespan(summary) for summary in summaries} - {""})) or "–"
        return spread(values, len(self.sweep.seeds), 100 if figure.unit == "share" else 1)

    def table(self, metric: str) -> tuple[list[str], list[list[str]]]:
        """Header and rows of mean ± standard error in per cent."""
        across, down = self.across, self.down
        header = [axis.name for axis in down] + ([show(v) for v in across.values] if across else [metric])
        rows = []
        for point in dict.fromkeys(tuple(result.cell.axes[axis.name] for axis in down) for result in self.results):
            chosen = {axis.name: value for axis, value in zip(down, point, strict=True)}
            lines = [{**chosen, across.name: value} for value in across.values] if across else [chosen]
            rows.append(
                [*map(show, point), *(spread(self.values(axes, metric), len(self.sweep.seeds)) for axes in lines)]
            )
        return header, rows

    def values(self, axes: Mapping[str, Value], metric: str) -> list[float]:
        """One for each seed that has finished."""
        found = [result.figures for result in self.results if result.cell.axes == axes]
        return [figures[metric] for figures in found if figures and metric in figures]


def spread(values: Sequence[float], wanted: int, times: float = 100) -> str:
    """`91.2 ± 0.4`, in per cent unless told: mean and standard error; how many there are where some are missing."""
    if not values:
        return "–"
    mean, error = mean_and_error(values)
    around = "" if error is None else f" ± {times * error:.1f}"
    missing = f" ({len(values)} of {wanted})" if len(values) < wanted else ""
    return f"{times * mean:.1f}{around}{missing}"


def write_markdown(grid: Grid, findings: Sequence[Finding], failed: Mapping[str, str], home: Path) -> None:
    """sweep.md: a table for each metric, then everything else in one, what was expected, and what went wrong."""
    sweep = grid.sweep
    seeds = ", ".join(map(str, sweep.seeds))
    about = f"Accuracy in %: each run's {grid.averaged}; {over_seeds(len(sweep.seeds))} ({seeds})."
    parts = [f"# {sweep.name}", sweep.about, about]
    if grid.across:
        parts[-1] += f" Columns: {grid.across.name}."
    for metric in grid.metrics:
        parts += [f"## {metric}", markdown(*grid.table(metric))]
    if grid.metrics:
        parts += ["## Further figures", f"{ABOUT} Averages are the {grid.averaged}.", markdown(*grid.further())]
    if findings:
        parts += ["## Expected", "\n".join(f"- {describe(finding)}" for finding in findings)]
    if failed:
        parts += ["## Failed", "\n".join(f"- {label}: {message}" for label, message in failed.items())]
    write_atomically(home / "sweep.md", ("\n\n".join(filter(None, parts)) + "\n").encode())


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def describe(finding: Finding) -> str:
    """An expectation and what was found, in one line."""
    asked = finding.expectation
    better, worse = (", ".join(f"{axis} {show(v)}" for axis, v in one.items()) for one in (asked.better, asked.worse))
    if finding.points is None:
        word, found = "not known", "cells are missing"
    else:
        word, found = "held" if finding.held else "NOT held", f"{finding.points:+.1f}"
    about = f"{asked.about}: " if asked.about else ""
    return f"{word}: {about}{better} above {worse} by {asked.by:g} points of {asked.metric} or more: {found}"
