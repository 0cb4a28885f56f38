"""A sweep in two pictures: accuracy over rounds and at the end over an axis, with standard errors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from thistle.experiments.runfolder import read_lines
from thistle.experiments.settings import Value
from thistle.report.statistics import mean_and_error, standard_error
from thistle.sweeps.cells import show
from thistle.sweeps.files import Axis
from thistle.sweeps.tables import Grid, Result

PANELS = 12
"""At most this many panels per picture: the first ones are drawn."""


def draw_curves(grid: Grid, path: Path) -> None:
    """Accuracy over rounds: a panel for each row of the table, a curve for each column."""
    rows = _rows(grid)[:PANELS]
    figure, panels = _panels(len(rows))
    for axes, chosen in zip(panels, rows, strict=False):
        for value in grid.across.values if grid.across else [None]:
            cell = {**chosen, grid.across.name: value} if grid.across and value is not None else chosen
            curve = _curve([result for result in grid.results if result.summary and result.cell.axes == cell])
            if not curve:
                continue
            x, means, errors = zip(*curve, strict=True)
            (line,) = axes.plot(x, means, label="" if value is None else show(value), lw=1.2)
            low, high = ([m + sign * e for m, e in zip(means, errors, strict=True)] for sign in (-1, 1))
            axes.fill_between(x, low, high, color=line.get_color(), alpha=0.2, lw=0)
        axes.set(xlabel="round", ylabel="test accuracy", title=_title(chosen), ylim=(0, 1))
        axes.grid(alpha=0.3)
    _save(figure, panels, grid, path)


def draw_final(grid: Grid, path: Path) -> None:
    """Accuracy at the end over the axis that goes across, or else the first: lines over numbers, bars over names."""
    axis = grid.across or (grid.sweep.axes[0] if grid.sweep.axes else None)
    if axis is None:
        return
    rows = _rows(grid) if grid.across else [{}]
    metrics = grid.metrics
    figure, panels = _panels(len(metrics))
    for axes, metric in zip(panels, metrics, strict=False):
        for number, chosen in enumerate(rows):
            values = [grid.values({**chosen, axis.name: value}, metric) for value in axis.values]
            means = [fmean(one) if one else math.nan for one in values]
            errors = [standard_error(one) or 0.0 for one in values]
            if _is_numeric(axis):
                axes.errorbar(axis.values, means, errors, marker="o", ms=3, capsize=2, lw=1.2, label=_title(chosen))
            else:
                width = 0.8 / len(rows)
                places = [place + (number - (len(rows) - 1) / 2) * width for place in range(len(axis.values))]
                axes.bar(places, means, width, yerr=errors, capsize=2, label=_title(chosen))
                axes.set_xticks(
                    range(len(axis.values)), [show(value) for value in axis.values], rotation=30, ha="right"
                )
        axes.set(xlabel=axis.name, ylabel=grid.averaged, title=metric, ylim=(0, 1))
        axes.grid(alpha=0.3)
    _save(figure, panels, grid, path)


def _rows(grid: Grid) -> list[dict[str, Value]]:
    points = dict.fromkeys(tuple(result.cell.axes[axis.name] for axis in grid.down) for result in grid.results)
    return [{axis.name: value for axis, value in zip(grid.down, point, strict=True)} for point in points]


def _curve(results: Sequence[Result]) -> list[tuple[int, float, float]]:
    """Round, mean and standard error over seeds, for the rounds that all seeds have evaluated."""
    runs = [
        {
            line["round"]: line["accuracy"]
            for line in read_lines(result.cell.folder.metrics)
            if line.get("accuracy") is not None
        }
        for result in results
    ]
    if not runs:
        return []
    common = sorted(set.intersection(*(set(run) for run in runs)))
    found = [(number, *mean_and_error([run[number] for run in runs])) for number in common]
    return [(number, mean, error or 0.0) for number, mean, error in found]


def _is_numeric(axis: Axis) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in axis.values)


def _title(chosen: Mapping[str, Value]) -> str:
    return ", ".join(f"{name.rpartition('.')[2]} {show(value)}" for name, value in chosen.items())


def _panels(count: int) -> tuple[Any, list[Any]]:
    from matplotlib.figure import Figure  # not pyplot: a notebook's own backend stays as it is

    columns = min(3, max(1, count))
    lines = max(1, math.ceil(count / columns))
    figure = Figure(figsize=(5 * columns + 2, 3.5 * lines), dpi=120)
    panels = figure.subplots(lines, columns, squeeze=False)
    return figure, list(panels.flat)


def _save(figure: Any, panels: Sequence[Any], grid: Grid, path: Path) -> None:
    for panel in panels:
        if not panel.has_data():
            panel.set_visible(False)
    labelled = next((panel for panel in panels if any(panel.get_legend_handles_labels()[1])), None)
    if labelled is not None:
        handles, labels = labelled.get_legend_handles_labels()
        title = grid.across.name if grid.across and path.stem == "curves" else None
        figure.legend(handles, labels, title=title, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    figure.suptitle(grid.sweep.name)
    figure.tight_layout()
    figure.savefig(path, bbox_inches="tight")
