"""A sweep folder in tables, maps and curves: means over seeds, the worst case over everything else.

    <folder>/sweep.json   name, axes {key: values}, seeds, cells [{id, folder, axes {key: value}, seed}]

each cell with a run folder of its own, which may be unfinished.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from statistics import fmean
from typing import Any

from thistle.experiments.errors import UserError
from thistle.report.reading import Run, inside, number, read_run
from thistle.report.statistics import LEVEL, holm, mean_and_error, welch
from thistle.report.stress import read_stress
from thistle.results.shown import FIGURES, mean_of
from thistle.sweeps.cells import show

SKEW = ("task.alpha", "task.partition", "task.shards")


@dataclass(frozen=True)
class Group:
    """The cells that differ only in their seeds."""

    axes: Mapping[str, str]
    values: Mapping[str, Sequence[float]]
    """By measure, one value per finished seed."""
    runs: Sequence[Run]

    def mean(self, measure: str) -> float:
        return fmean(self.values[measure])


@dataclass(frozen=True)
class Sweep:
    """Everything about a sweep that a page or a picture shows."""

    name: str
    axes: Mapping[str, Sequence[str]]
    groups: Sequence[Group]
    cells: Sequence[Mapping[str, Any]]
    problems: Sequence[str]
    stress: Mapping[str, Any] | None = None
    """Where it is the search of `thistle stress`: what that has found."""
    defences: str = ""
    """The axis along which the sweep's file changes strategies, as its plan says."""

    @property
    def measures(self) -> list[str]:
        return list(dict.fromkeys(measure for group in self.groups for measure in group.values))

    @property
    def strategy(self) -> str | None:
        """The axis along which defences differ."""
        if self.defences in self.axes:
            return self.defences
        of_strategy = [key for key in self.axes if key.startswith("strategy.")]
        return "strategy.name" if "strategy.name" in of_strategy else next(iter(of_strategy), None)

    def pairs(self) -> list[tuple[str, str]]:
        """The axes of the maps, rows first: fraction × strategy, fraction × skew, then all others.

        A search has many attacks: they go down, even where there is only one fraction.
        """
        if self.stress is not None:
            return [("attack.kind", "attack.fraction")]
        rank = {"attack.fraction": 0, **dict.fromkeys(SKEW, 2)} | ({self.strategy: 1} if self.strategy else {})
        wide = sorted((key for key in self.axes if len(self.axes[key]) > 1), key=lambda key: rank.get(key, 3))
        return list(combinations(wide, 2))


def read_sweep(folder: Path) -> Sweep:
    """The sweep as far as it has come."""
    try:
        plan = json.loads((folder / "sweep.json").read_text(encoding="utf-8"))
        axes = {str(key): [show(value) for value in values] for key, values in plan["axes"].items()}
        cells = [
            (str(cell["folder"]), {str(k): show(v) for k, v in cell["axes"].items()}, int(cell["seed"]))
            for cell in plan["cells"]
        ]
    except (OSError, ValueError, OverflowError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{folder / 'sweep.json'}: cannot be read as a sweep: {error!r}") from None
    problems: list[str] = []
    grouped: dict[tuple, list[Run]] = {}
    listed = []
    for where, own, seed in cells:
        path = folder / where
        if not path.resolve().is_relative_to(folder.resolve()):
            problems.append(f"{where}: lies outside of the sweep's folder; not read")
            continue
        run = read_run(path, path.name)
        grouped.setdefault(tuple(own.items()), []).append(run)
        status = run.status if inside(path, "experiment.toml") else "not started"
        listed.append({"folder": where, "axes": own, "seed": seed, "status": status, "values": _values(run)})
    groups = [_group(dict(own), runs) for own, runs in grouped.items()]
    stress = read_stress(folder, problems)
    defences = str(plan.get("defences") or "")
    return Sweep(str(plan.get("name", folder.name)), axes, groups, listed, problems, stress, defences)


def _values(run: Run) -> dict[str, float]:
    """What is compared: accuracy, and accuracy under each evasion attack; both as means of the last evaluations."""
    final = number(run.summary.get("final_accuracy"))
    if run.status != "finished" or final is None:
        return {}
    return {"accuracy": final, **{f"under {attack}": value for attack, value in run.withstood.items()}}


def _group(axes: Mapping[str, str], runs: Sequence[Run]) -> Group:
    values: dict[str, list[float]] = {}
    for run in runs:
        for measure, value in _values(run).items():
            values.setdefault(measure, []).append(value)
    return Group(axes, values, runs)


def worst(groups: Sequence[Group], measure: str) -> Group | None:
    """The group with the lowest mean over its seeds."""
    measured = [group for group in groups if measure in group.values]
    return min(measured, key=lambda group: group.mean(measure), default=None)


def pick(groups: Sequence[Group], **axes: str) -> list[Group]:
    return [group for group in groups if all(group.axes.get(key) == value for key, value in axes.items())]


def make_map(sweep: Sweep, measure: str, rows: str, columns: str, **fixed: str) -> dict[str, Any]:
    """For each pair of values the worst case over all other axes: its mean, standard error, seeds, and which it is.

    Where one of the two axes is that of the defences, also whether it leads against the others.
    """
    cells, found = [], {}
    for row, column in product(sweep.axes[rows], sweep.axes[columns]):
        case = worst(pick(sweep.groups, **{rows: row, columns: column}, **fixed), measure)
        if case is not None:
            found[row, column] = case
    leading = _leading(sweep, found, measure, rows) if sweep.strategy in (rows, columns) else {}
    for (row, column), group in found.items():
        mean, error = mean_and_error(group.values[measure])
        others = {key: value for key, value in group.axes.items() if key not in (rows, columns, *fixed)}
        about = {"mean": mean, "error": error, "seeds": len(group.values[measure]), "case": others}
        lead = {"leads": (row, column) in leading, "significant": leading.get((row, column), False)}
        cells.append({"row": row, "column": column, **about, **lead})
    return {"rows": rows, "columns": columns, "fixed": fixed, "measure": measure, "cells": cells}


def _leading(
    sweep: Sweep, found: Mapping[tuple[str, str], Group], measure: str, rows: str
) -> dict[tuple[str, str], bool]:
    """The cells that are the best defence under the same conditions, and whether the next one is really behind."""
    place = 1 if sweep.strategy == rows else 0
    lines: dict[str, list[tuple[str, str]]] = {}
    for cell in found:
        lines.setdefault(cell[place], []).append(cell)
    best, sure = leaders([[found[cell] for cell in line] for line in lines.values() if len(line) > 1], measure)
    cells = {id(group): cell for cell, group in found.items()}
    return {cells[id(group)]: really for group, really in zip(best, sure, strict=True)}


def leaders(lines: Sequence[Sequence[Group]], measure: str) -> tuple[list[Group], list[bool]]:
    """Of each line the group with the highest mean, and whether it is significantly better than the next one (Welch,
    Holm's correction for the lines)."""
    ranked = [sorted(line, key=lambda group: -group.mean(measure)) for line in lines if line]
    ps = [welch(line[0].values[measure], line[1].values[measure]) if len(line) > 1 else None for line in ranked]
    corrected = iter(holm([p for p in ps if p is not None]))
    return [line[0] for line in ranked], [p is not None and next(corrected) < LEVEL for p in ps]


def best_map(sweep: Sweep, measure: str, rows: str, columns: str) -> dict[str, Any]:
    """For each pair of values the defence whose worst case is best, and whether the next one is really behind it."""
    strategy = sweep.strategy or ""
    cells: list[dict[str, Any]] = []
    for row in sweep.axes[rows]:
        for column in sweep.axes[columns]:
            here = pick(sweep.groups, **{rows: row, columns: column})
            worsts = [worst(pick(here, **{strategy: name}), measure) for name in sweep.axes[strategy]]
            ranked = sorted((one for one in worsts if one), key=lambda one: -one.mean(measure))
            if ranked:
                cells.append({"row": row, "column": column, **_duel(ranked, measure, strategy)})
    tested = [cell for cell in cells if cell["p"] is not None]
    for cell, corrected in zip(tested, holm([cell["p"] for cell in tested]), strict=True):
        cell |= {"corrected": corrected, "significant": corrected < LEVEL}
    return {"rows": rows, "columns": columns, "fixed": {}, "measure": measure, "cells": cells}


def _duel(ranked: Sequence[Group], measure: str, strategy: str) -> dict[str, Any]:
    first, second = ranked[0], ranked[1] if len(ranked) > 1 else None
    mean, error = mean_and_error(first.values[measure])
    found = {"best": first.axes[strategy], "mean": mean, "error": error, "seeds": len(first.values[measure])}
    found |= {"second": None, "p": None, "corrected": None, "significant": False}
    if second:
        behind = {"second": second.axes[strategy], "second_mean": second.mean(measure)}
        found |= {**behind, "p": welch(first.values[measure], second.values[measure])}
    return found


def curve(group: Group, measure: str = "accuracy") -> dict[str, list[float]]:
    """Mean over seeds in each evaluated round, and one standard error below and above it."""
    by_round: dict[float, list[float]] = {}
    for run in group.runs:
        for number_, value in zip(run.columns.get("round", ()), run.columns.get(measure, ()), strict=False):
            if number_ is not None and value is not None:
                by_round.setdefault(number_, []).append(value)
    rounds = sorted(by_round)
    pairs = [mean_and_error(by_round[one]) for one in rounds]
    return {
        "rounds": rounds,
        "mean": [mean for mean, _ in pairs],
        "low": [mean - (error or 0) for mean, error in pairs],
        "high": [mean + (error or 0) for mean, error in pairs],
    }


def as_page(sweep: Sweep, reports: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The sweep as the page wants it; `reports`: the addresses of its runs' own pages, by their ids."""
    finished = [run for group in sweep.groups for run in group.runs if run.status == "finished"]
    maps, bests = [], []
    for measure in sweep.measures:
        for rows, columns in sweep.pairs():
            if sweep.strategy in (rows, columns, None) or len(sweep.axes[sweep.strategy or ""]) < 2:
                maps.append(make_map(sweep, measure, rows, columns))
                continue
            each = sweep.axes[sweep.strategy]
            maps += [make_map(sweep, measure, rows, columns, **{sweep.strategy: name}) for name in each]
            bests.append(best_map(sweep, measure, rows, columns))
    return {
        "name": sweep.name,
        "axes": sweep.axes,
        "strategy": sweep.strategy,
        "measures": sweep.measures,
        "averaged": mean_of(number(run.summary.get("evaluations_averaged")) for run in finished),
        "further": _further(sweep),
        "table": [
            {
                "axes": group.axes,
                "seeds": len(group.runs),
                "values": _row(group),
                "runs": [
                    {"id": run.id, "seed": number(run.experiment.get("seed")), "report": (reports or {}).get(run.id)}
                    for run in group.runs
                ],
            }
            for group in sweep.groups
        ],
        "maps": maps,
        "bests": bests,
        "curves": [{"axes": group.axes, "seeds": len(group.runs), **curve(group)} for group in sweep.groups],
        "unfinished": [cell for cell in sweep.cells if cell["status"] != "finished"],
        "cells": len(sweep.cells),
        "problems": sweep.problems,
        "stress": sweep.stress,
    }


def _row(group: Group) -> dict[str, Any]:
    return {measure: _cell(values) for measure, values in group.values.items()}


def _cell(values: Sequence[float]) -> dict[str, Any]:
    return dict(zip(("mean", "error", "seeds"), (*mean_and_error(values), len(values)), strict=True))


def _further(sweep: Sweep) -> list[dict[str, Any]]:
    """What was measured besides, one column per figure: its name, unit, and a cell for each group (None: nothing)."""
    columns = []
    for figure in FIGURES:
        values = [
            [
                value
                for run in group.runs
                if run.status == "finished" and (value := number(figure.of(run.summary))) is not None
            ]
            for group in sweep.groups
        ]
        cells = [_cell(one) if one else None for one in values]
        if any(cells):
            columns.append({"name": figure.name, "unit": figure.unit, "cells": cells})
    return columns
