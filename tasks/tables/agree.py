"""One scheme for sites that show each other no row.

Each site sums its table up: how many numbers a column has, their mean and standard deviation, and the names of
categories that at least `LEAST` of its rows share. The server takes the columns that more than half of the sites have,
and of the means and deviations the median over sites. So less than half of the sites, whatever they claim, cannot move
a column's centre out of the range of the honest ones' means.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np

from thistle.experiments.errors import UserError
from thistle.tasks.tables.read import Options, Table, numbers_in
from thistle.tasks.tables.scheme import Column, Scheme, as_numbers

LEAST = 5
"""A category that fewer rows of a site share is not named outside of it."""
CATEGORIES = 100
"""The most of one column."""
COLUMNS = 5_000
LONGEST = 200
"""Characters of a name."""


@dataclass(frozen=True)
class Summed:
    """What a site says of one column: numbers, or else categories."""

    numeric: bool
    count: int
    """Of its rows that have a value."""
    missing: int
    mean: float = 0.0
    deviation: float = 0.0
    categories: tuple[str, ...] = ()
    """The most frequent first."""


Summary = Mapping[str, Summed]
"""By the column's name."""


def sum_up(table: Table, options: Options, least: int = LEAST) -> dict[str, Summed]:
    """Of each column. `least`: of the rows that share a category before it is named."""
    for name in sorted(options.categorical - table.columns.keys()):
        raise UserError(f"{table.where}: has no column {name!r}, which task.categorical names")
    return {name: _summed(table, name, name in options.categorical, least) for name in table.columns}


def _summed(table: Table, name: str, categorical: bool, least: int) -> Summed:
    known = [cell for cell in table.columns[name] if cell]
    gone = len(table) - len(known)
    if not categorical and _mostly_numbers(known):
        numbers = as_numbers(table, name)
        numbers = numbers[~np.isnan(numbers)]
        if not len(numbers):
            return Summed(True, 0, gone)
        return Summed(True, len(known), gone, float(numbers.mean()), float(numbers.std()))
    counts = Counter(known)
    if len(counts) > CATEGORIES:
        stray = next((cell for cell in known if numbers_in([cell]) is None), known[0])
        raise table.fault(
            name,
            list(table.columns[name]).index(stray),
            f"is not a number, and {len(counts)} different texts are too many for categories (at most {CATEGORIES}): "
            "correct it, or add the column to task.ignore",
        )
    shared = [
        category for category, count in sorted(counts.items(), key=lambda one: (-one[1], one[0])) if count >= least
    ]
    return Summed(False, len(known), gone, categories=tuple(shared))


def _mostly_numbers(known: Sequence[str]) -> bool:
    """A column in which a few cells are no numbers has faults, which are named, rather than categories."""
    return 2 * sum(numbers_in([cell]) is not None for cell in known) >= len(known)


def agree(summaries: Sequence[Summary]) -> Scheme:
    """The scheme that most sites can use."""
    having = Counter(name for summary in summaries for name in summary)
    names = [name for name in having if 2 * having[name] > len(summaries)]
    order = names if len(summaries) == 1 else sorted(names)
    columns = [_agreed(name, [summary[name] for summary in summaries if name in summary]) for name in order]
    useful = tuple(column for column in columns if column.inputs)
    if not useful:
        raise UserError("the sites' tables have no column in common")
    return Scheme(useful)


def _agreed(name: str, said: Sequence[Summed]) -> Column:
    numeric = [one for one in said if one.numeric and one.count]
    others = [one for one in said if not one.numeric]
    if len(others) >= len(numeric) and others:
        return Column(name, numeric=False, categories=_categories(others))
    centre = median(one.mean for one in numeric) if numeric else 0.0
    spread = median(math.hypot(one.deviation, one.mean - centre) for one in numeric) if numeric else 0.0
    return Column(name, centre, spread or 1.0, any(one.missing for one in said))


def _categories(said: Sequence[Summed]) -> tuple[str, ...]:
    """Those that most sites name, then those that are frequent where they are; in the order of the alphabet."""
    naming: Counter[str] = Counter()
    places: dict[str, int] = defaultdict(lambda: CATEGORIES)
    for one in said:
        for place, category in enumerate(one.categories):
            naming[category] += 1
            places[category] = min(places[category], place)
    chosen = sorted(naming, key=lambda category: (-naming[category], places[category], category))[:CATEGORIES]
    return tuple(sorted(chosen))


def write_summary(summary: Summary) -> str:
    """As it travels."""
    return json.dumps({name: asdict(column) for name, column in summary.items()}, ensure_ascii=False)


def read_summary(text: str) -> dict[str, Summed]:
    """From a site: whatever it says is bounded, or refused."""
    try:
        said = json.loads(text)
        if not isinstance(said, dict) or not 0 < len(said) <= COLUMNS:
            raise ValueError(f"expected 1 to {COLUMNS} columns")
        return {_short(name): _checked(column) for name, column in said.items()}
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"its summary of columns cannot be used: {error}") from None


def _short(name: Any) -> str:
    if not isinstance(name, str) or not name.isprintable() or len(name) > LONGEST:
        raise ValueError("a name is not a short text")
    return name


def _checked(said: dict[str, Any]) -> Summed:
    categories = tuple(_short(category) for category in said["categories"][:CATEGORIES])
    mean, deviation = float(said["mean"]), float(said["deviation"])
    if not (math.isfinite(mean) and math.isfinite(deviation) and deviation >= 0 and abs(mean) + deviation < 1e30):
        raise ValueError("a mean or deviation is not a usable number")
    count, missing = int(said["count"]), int(said["missing"])
    return Summed(said["numeric"] is True, count, missing, mean, deviation, categories)
