"""What a sweep expects of itself: which cells are better than which, by how much. Checked at its end.

    [[expect]]
    about = "with 60 % attackers the loss filter holds"
    better = { attack.fraction = 0.6, strategy.filter = "loss" }
    worse = { attack.fraction = 0.6, strategy.filter = "none" }
    by = 20.0                     # points at least; default 0; below 0: not worse by more than that
    metric = "accuracy"           # or an attack of evaluate.attacks, such as "pgd20"

`better` and `worse` choose cells by some of their axes; compared are the means over all cells that are chosen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from thistle.experiments.errors import UserError
from thistle.experiments.experiment import flatten_tables
from thistle.experiments.settings import Value

WORDS = ("about", "better", "worse", "by", "metric")


@dataclass(frozen=True)
class Expectation:
    """One ordering."""

    about: str
    better: Mapping[str, Value]
    worse: Mapping[str, Value]
    by: float
    metric: str


@dataclass(frozen=True)
class Finding:
    """Its outcome: `points` by which it is better, None where a cell has no result."""

    expectation: Expectation
    points: float | None

    @property
    def held(self) -> bool:
        return self.points is not None and self.points >= self.expectation.by

    def document(self) -> dict[str, Any]:
        asked = self.expectation
        return {
            "about": asked.about,
            "metric": asked.metric,
            "better": dict(asked.better),
            "worse": dict(asked.worse),
            "by": asked.by,
            "found": self.points,
            "held": self.held if self.points is not None else None,
        }


def read_expectations(entries: Any, axes: Mapping[str, Sequence[Value]], where: str) -> list[Expectation]:
    """The [[expect]] tables, checked against the axes."""
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise UserError(f"{where}: expect: should be a list of tables, [[expect]]")
    return [_read(entry, axes, f"{where}: expect {number}") for number, entry in enumerate(entries, 1)]


def _read(entry: Mapping[str, Any], axes: Mapping[str, Sequence[Value]], where: str) -> Expectation:
    for word in entry:
        if word not in WORDS:
            raise UserError(f"{where}: {word}: no such key; there are {', '.join(WORDS)}")
    by, metric = entry.get("by", 0.0), entry.get("metric", "accuracy")
    if isinstance(by, bool) or not isinstance(by, int | float):
        raise UserError(f"{where}: by = {by!r}: should be a number of points")
    if not isinstance(metric, str) or not metric:
        raise UserError(f"{where}: metric = {metric!r}: should be accuracy or an attack of evaluate.attacks")
    better, worse = (_choice(entry.get(word), axes, f"{where}: {word}") for word in ("better", "worse"))
    return Expectation(str(entry.get("about", "")), better, worse, float(by), metric)


def _choice(table: Any, axes: Mapping[str, Sequence[Value]], where: str) -> dict[str, Value]:
    if not isinstance(table, dict) or not table:
        raise UserError(f"{where}: should choose cells by their axes, such as {{ {next(iter(axes), 'axis')} = … }}")
    chosen = flatten_tables(table)
    for axis, value in chosen.items():
        if axis not in axes:
            raise UserError(f"{where}: {axis}: is not an axis of this sweep; there are {', '.join(axes)}")
        if value not in axes[axis]:
            raise UserError(f"{where}: {axis} = {value!r}: is not one of its values, {list(axes[axis])}")
    return chosen


def check(expectation: Expectation, cells: Sequence[tuple[Mapping[str, Value], Mapping[str, float] | None]]) -> Finding:
    """`cells`: the axes of each and its figures as shares of 1, None where it has none."""
    means = [_mean(choice, cells, expectation.metric) for choice in (expectation.better, expectation.worse)]
    if means[0] is None or means[1] is None:
        return Finding(expectation, None)
    return Finding(expectation, round(100 * (means[0] - means[1]), 6))


def _mean(
    choice: Mapping[str, Value], cells: Sequence[tuple[Mapping[str, Value], Mapping[str, float] | None]], metric: str
) -> float | None:
    chosen = [figures for axes, figures in cells if all(axes[axis] == value for axis, value in choice.items())]
    values = [figures[metric] for figures in chosen if figures is not None and metric in figures]
    return fmean(values) if values and len(values) == len(chosen) else None
