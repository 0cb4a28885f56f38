"""From a CSV or Parquet file to a table of texts, with every fault named by its row."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thistle.experiments.errors import UserError
from thistle.experiments.extras import require
from thistle.experiments.settings import Task
from thistle.protocol.text import printable
from thistle.tasks.sources.archive import Limits

BYTES = Limits().total_bytes // 32
"""A larger file is refused: 2 GiB."""
MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})
MOST_CLASSES = 200
"""More different whole numbers than this as labels are amounts, not classes."""


@dataclass(frozen=True)
class Options:
    """How a table is read: the settings of the task of these names."""

    label: str
    categorical: frozenset[str]
    ignore: frozenset[str]

    @classmethod
    def of(cls, task: Task) -> Options:
        return cls(task.label, _names(task.categorical), _names(task.ignore))


def _names(text: str) -> frozenset[str]:
    return frozenset(name.strip() for name in text.split(",") if name.strip())


@dataclass(frozen=True)
class Table:
    """Columns of texts without the label's; missing cells are empty."""

    where: str
    """Whose it is, for an error."""
    columns: Mapping[str, Sequence[str]]
    labels: Sequence[str]
    lines: Sequence[int] = ()
    """Of the file, where each row stands."""

    def __len__(self) -> int:
        return len(self.labels)

    def fault(self, column: str, row: int, what: str) -> UserError:
        """An error that names a cell."""
        text = printable(self.columns[column][row], 40)
        line = self.lines[row] if row < len(self.lines) else row + 1
        return UserError(f"{self.where}: line {line}, column {column!r}: {text!r} {what}")

    def take(self, rows: Sequence[int]) -> Table:
        """Only these rows."""
        columns = {name: [cells[row] for row in rows] for name, cells in self.columns.items()}
        lines = [self.lines[row] for row in rows] if self.lines else ()
        return Table(self.where, columns, [self.labels[row] for row in rows], lines)


def read_table(path: Path, options: Options, labelled: bool = True) -> Table:
    """The file's rows; by its suffix Parquet, otherwise CSV. `labelled` false: there may be no column with labels."""
    reader = _parquet if path.suffix == ".parquet" else _csv
    try:
        if path.stat().st_size > BYTES:
            raise UserError(f"{path}: refused: larger than {BYTES} bytes")
        header, rows = reader(path)
        return _table(path, header, list(rows), options, labelled)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{path}: cannot be read as a table: {reason}") from None


def _csv(path: Path) -> tuple[list[str], Iterator[list[str]]]:
    text = path.read_text(encoding="utf-8-sig")
    first = text.partition("\n")[0]
    delimiter = max(",;\t", key=first.count)
    lines = csv.reader(text.splitlines(keepends=True), delimiter=delimiter, strict=True)
    header = [name.strip() for name in next(lines, [])]
    return header, (row for row in lines if row)


def _parquet(path: Path) -> tuple[list[str], Iterator[list[str]]]:
    require("pyarrow")
    import pyarrow
    from pyarrow import parquet

    try:
        table = parquet.read_table(path)
    except pyarrow.ArrowException as error:
        raise UserError(f"{path}: cannot be read as Parquet: {printable(str(error), 200)}") from None
    columns = [[_text(value) for value in column.to_pylist()] for column in table.columns]
    return list(table.column_names), (list(row) for row in zip(*columns, strict=True))


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _table(path: Path, header: list[str], rows: list[list[str]], options: Options, labelled: bool) -> Table:
    if not header or not rows:
        raise UserError(f"{path}: has no rows; expected a line with the columns' names, then one line per row")
    twice = {name for name in header if header.count(name) > 1}
    if twice or not all(header):
        raise UserError(f"{path}: {f'column {min(twice)!r} occurs twice' if twice else 'a column has no name'}")
    for number, row in enumerate(rows):
        if len(row) != len(header):
            raise UserError(f"{path}: line {number + 2} has {len(row)} values, the first line has {len(header)}")
    if labelled and options.label not in header:
        near = ", ".join(header[:12]) + (", …" if len(header) > 12 else "")
        raise UserError(f"{path}: has no column {options.label!r}; set task.label to the one with the class, of {near}")
    cells = dict(zip(header, zip(*[[_known(cell) for cell in row] for row in rows], strict=True), strict=True))
    found = cells.pop(options.label, ())
    labels = _labels(path, options.label, found) if labelled else [""] * len(rows)
    kept = {name: values for name, values in cells.items() if name not in options.ignore}
    if not kept:
        raise UserError(f"{path}: has no column besides the label and those of task.ignore")
    return Table(str(path), kept, labels, range(2, len(rows) + 2))


def _known(cell: str) -> str:
    text = cell.strip()
    return "" if text.lower() in MISSING else text


def _labels(path: Path, column: str, labels: Sequence[str]) -> Sequence[str]:
    """Classes' names; whole numbers are written without a fraction."""
    if "" in labels:
        raise UserError(f"{path}: line {list(labels).index('') + 2} has no label in column {column!r}; remove the row")
    numbers = numbers_in(labels)
    if numbers is None:
        return labels
    different = set(numbers)
    if any(number != int(number) for number in different) or len(different) > MOST_CLASSES:
        shown = next((one for one in sorted(different) if one != int(one)), max(different))
        raise UserError(
            f"{path}: column {column!r} holds {len(different)} different numbers, such as {shown:g}: regression is not "
            "supported; name a column of classes by task.label"
        )
    return [str(int(number)) for number in numbers]


def numbers_in(texts: Iterable[str]) -> list[float] | None:
    """The numbers that these are; None where one of them is none."""
    try:
        found = [float(text) for text in texts]
    except ValueError:
        return None
    return None if any(abs(number) == float("inf") for number in found) else found


def in_order(labels: Iterable[str]) -> tuple[str, ...]:
    """Each class once: numbers by their size, texts by the alphabet."""
    different = set(labels)
    key: Callable[[str], Any] = int if all(_is_whole(name) for name in different) else str
    return tuple(sorted(different, key=key))


def _is_whole(text: str) -> bool:
    return text.removeprefix("-").isdecimal()
