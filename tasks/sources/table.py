"""`csv:PATH` and `parquet:PATH`: rows with a label, in one file, or in a folder with train.csv and test.csv."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from thistle.experiments import settings
from thistle.experiments.errors import UserError
from thistle.tasks.dataset import ANY
from thistle.tasks.sources import archive
from thistle.tasks.sources.cache import Workspace
from thistle.tasks.sources.npz import numbered
from thistle.tasks.sources.registry import SOURCES, Found, Wanted
from thistle.tasks.stratified import stratified_always
from thistle.tasks.tables.agree import Summary, agree, sum_up
from thistle.tasks.tables.read import Options, Table, in_order, read_table
from thistle.tasks.tables.scheme import Scheme

FORMS = ("csv", "parquet")
NEEDS = "there is no train.csv; only nodes with their own tables can supply it (thistle deploy node --data)"


@SOURCES.add(
    "csv:PATH", "your table: a row per case, a column with the class; a file, or a folder with train.csv, test.csv"
)
@SOURCES.add("parquet:PATH", "the same as Parquet files, where pyarrow is installed")
def table(wanted: Wanted) -> Found:
    """The rows below this path."""
    options, path = wanted.options, wanted.path
    terms = [options.label, options.categorical, options.ignore, options.test_share, wanted.scheme]
    return Found(["table", archive.fingerprint(path), *terms], partial(_read, wanted), str(path))


def _read(wanted: Wanted, work: Workspace) -> tuple[str, ...]:
    return put_tables(find_tables(wanted), work, wanted)


def find_tables(wanted: Wanted) -> dict[str, Table]:
    """Training and test rows, of which one may be absent. A single file is split, each class by its share."""
    options, path = Options.of(wanted.options), wanted.path
    if not path.is_dir():
        return split(read_table(path, options), wanted.options.test_share)
    suffix = wanted.name.partition(":")[0]
    files = {name: path / f"{name}.{suffix}" for name in ("train", "test")}
    found = {name: read_table(file, options) for name, file in files.items() if file.is_file()}
    if not found:
        raise UserError(f"{path}: has neither train.{suffix} nor test.{suffix}")
    return found


def split(whole: Table, share: float) -> dict[str, Table]:
    """`share` of the rows, always the same ones, are the test set."""
    classes = in_order(whole.labels)
    labels = numbered(whole.where, whole.labels, classes)
    test = np.zeros(len(whole), dtype=bool)
    test[stratified_always(labels, round(share * len(whole)))] = True
    return {"train": whole.take(np.flatnonzero(~test).tolist()), "test": whole.take(np.flatnonzero(test).tolist())}


def put_tables(tables: Mapping[str, Table], work: Workspace, wanted: Wanted) -> tuple[str, ...]:
    """Store both splits by the scheme that was agreed on, or by one made of the training rows."""
    scheme = Scheme.read(wanted.scheme) if wanted.scheme else _own_scheme(tables, wanted)
    classes = in_order(label for part in tables.values() for label in part.labels)
    work.describe(ANY, scheme.text())
    for name in ("train", "test"):
        part = tables.get(name) or next(iter(tables.values())).take([])
        values = scheme.values(part) if len(part) else np.empty((0, len(scheme.inputs)), np.float32)
        work.put(name, values, numbered(part.where, part.labels, classes))
    return classes


def _own_scheme(tables: Mapping[str, Table], wanted: Wanted) -> Scheme:
    if "train" not in tables:
        raise UserError(f"{wanted.name}: the scale of its columns is not known: {NEEDS}")
    return agree([sum_up(tables["train"], Options.of(wanted.options), least=1)])


def columns_of(name: str) -> list[str]:
    """The names of its columns, the label's among them."""
    wanted = Wanted(name)
    path = wanted.path
    files = sorted(path.glob(f"t*.{name.partition(':')[0]}")) if path.is_dir() else [path]
    if not files:
        raise UserError(f"{path}: has no table")
    return list(read_table(files[0], Options("", frozenset(), frozenset()), labelled=False).columns)


def is_table(name: str) -> bool:
    """Whether this name asks for a table of the user's own."""
    return name.partition(":")[0] in FORMS


def lacks_training_rows(task: settings.Task) -> bool:
    """Whether it is a table without them, so that others must say how its columns are scaled."""
    wanted = Wanted(task.name, task.data_dir, task)
    suffix = task.name.partition(":")[0]
    return suffix in FORMS and wanted.path.is_dir() and not (wanted.path / f"train.{suffix}").is_file()


def summarise(wanted: Wanted) -> Summary:
    """What a site says of its training rows when the server asks how columns should be scaled."""
    tables = find_tables(wanted)
    if "train" not in tables:
        raise UserError(f"{wanted.name}: has no training rows")
    return sum_up(tables["train"], Options.of(wanted.options))
