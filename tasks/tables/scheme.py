"""How a table's rows become a model's inputs: the same columns, categories and scales at every site.

A numeric column becomes (x − centre) / scale, cut at ±`FAR`; a missing value becomes 0, and where values were missing
when the scheme was made, a second input is 1 for it. A column of categories becomes one input per category, 1 for the
row's own; a missing or unknown category is 0 in all of them.
"""

from __future__ import annotations

import json
import logging
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from thistle.experiments.errors import UserError
from thistle.protocol.text import printable
from thistle.tasks.tables.read import Table

logger = logging.getLogger("thistle")
HOW = "is not a finite number: correct it, leave it empty, or add the column to task.categorical"
FAR = 10.0
"""Scales from the centre: values beyond are cut to this."""
MOST_INPUTS = 20_000


@dataclass(frozen=True)
class Column:
    """One column of the table. With `categories` it holds these, otherwise numbers."""

    name: str
    centre: float = 0.0
    scale: float = 1.0
    missing: bool = False
    """Whether a second input says that the number is missing."""
    categories: tuple[str, ...] = ()
    numeric: bool = True

    @property
    def inputs(self) -> tuple[str, ...]:
        """What its inputs are called."""
        if not self.numeric:
            return tuple(f"{self.name} = {category}" for category in self.categories)
        return (self.name, f"{self.name} is missing") if self.missing else (self.name,)


@dataclass(frozen=True)
class Scheme:
    """All columns, in the order of the inputs."""

    columns: tuple[Column, ...]

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """What every input is called."""
        return tuple(name for column in self.columns for name in column.inputs)

    def text(self) -> str:
        """As it travels, and as it is kept beside the model."""
        return json.dumps([asdict(column) for column in self.columns], ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def read(cls, text: str) -> Scheme:
        """From that text, which may come from elsewhere."""
        try:
            columns = tuple(_column(said) for said in json.loads(text))
        except (ValueError, TypeError, KeyError) as error:
            raise UserError(f"the scheme of the table's columns cannot be read: {error}") from None
        scheme = cls(columns)
        if not 0 < len(scheme.inputs) <= MOST_INPUTS:
            raise UserError(
                f"the table's columns make {len(scheme.inputs)} inputs; from 1 to {MOST_INPUTS} are possible"
            )
        return scheme

    def values(self, table: Table) -> np.ndarray:
        """n × inputs, float32; refuses a table without one of the columns, or with a text where numbers should be."""
        missing = [column.name for column in self.columns if column.name not in table.columns]
        if missing:
            raise UserError(f"{table.where}: has no column {missing[0]!r}{_more(missing)}, which the federation uses")
        parts = [self._part(table, column) for column in self.columns]
        return np.concatenate(parts, axis=1)

    def _part(self, table: Table, column: Column) -> np.ndarray:
        cells = table.columns[column.name]
        return _scaled(table, column, cells) if column.numeric else _one_hot(table, column, cells)


def _column(said: dict[str, Any]) -> Column:
    column = Column(**{**said, "categories": tuple(map(str, said["categories"]))})
    if not (math.isfinite(column.centre) and math.isfinite(column.scale) and column.scale > 0):
        raise ValueError(f"column {column.name!r} has no usable scale")
    return column


def _more(names: Sequence[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""


def _scaled(table: Table, column: Column, cells: Sequence[str]) -> np.ndarray:
    numbers = as_numbers(table, column.name)
    gone = np.isnan(numbers)
    scaled = np.where(gone, 0.0, np.clip((numbers - column.centre) / column.scale, -FAR, FAR))
    inputs = [scaled, gone] if column.missing else [scaled]
    return np.stack(inputs, axis=1).astype(np.float32)


def as_numbers(table: Table, name: str) -> np.ndarray:
    """A column's numbers in float64, NaN where they are missing; refuses texts."""
    cells = table.columns[name]
    numbers = np.full(len(cells), np.nan)
    for row, cell in enumerate(cells):
        if cell:
            try:
                numbers[row] = float(cell)
            except ValueError:
                raise table.fault(name, row, HOW) from None
            if not np.isfinite(numbers[row]):
                raise table.fault(name, row, HOW)
    return numbers


def _one_hot(table: Table, column: Column, cells: Sequence[str]) -> np.ndarray:
    places = {category: place for place, category in enumerate(column.categories)}
    inputs = np.zeros((len(cells), len(places)), dtype=np.float32)
    unknown: Counter[str] = Counter()
    for row, cell in enumerate(cells):
        if cell in places:
            inputs[row, places[cell]] = 1.0
        elif cell:
            unknown[cell] += 1
    if unknown:
        first = printable(min(unknown), 40)
        logger.warning(
            "%s: column %r: %d rows hold categories that the federation does not know, such as %r: read as missing",
            table.where,
            column.name,
            unknown.total(),
            first,
        )
    return inputs
