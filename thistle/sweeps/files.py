"""From a sweep file to its cells. What is wrong with a file is said in one line, before anything runs.

preset = "digits-mix"                 # what every cell starts from: a preset, or a file beside this one
seeds = [0, 1, 2]
engine = "inline"                     # unless --engine says otherwise
columns = "attack.fraction"           # the axis that goes across in tables

[set]                                 # changes for every cell
rounds = 30

[axes]                                # every value with every other
attack.fraction = [0.0, 0.3, 0.6]

[zip.defence]                         # settings that change together: one axis with its own name
labels = ["FedAvg", "RoFSL, γ = 0.5"]
strategy.name = ["fedavg", "rofsl"]
strategy.gamma = ["default", 0.5]

[[expect]]                            # checked at the end: see `expectations`
"""

from __future__ import annotations

import difflib
import itertools
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from thistle.experiments.errors import UserError
from thistle.experiments.experiment import KEYS, flatten_tables, read_file, unknown_key
from thistle.experiments.plugins import pin
from thistle.experiments.settings import Value
from thistle.running.prepare import (
    SWEEPS,
    Overrides,
    about,
    changed,
    code_folders,
    find_experiment,
    find_file,
    known_key,
    plain_name,
    preset_names,
    read_overrides,
    settle,
)
from thistle.sweeps.cells import Cell, folders, place, show
from thistle.sweeps.expectations import Expectation, read_expectations

WORDS = ("preset", "seeds", "engine", "columns", "set", "axes", "zip", "expect")
MOST = 100_000
"""Cells at most: more is a typing mistake."""
ATTACK, STRENGTH = "attack.kind", "attack.strength"
DESTROYED = {"stop.lost-if-rejected": False}
"""A defence that an attack has destroyed is a result, and its cell has a number like every other."""


@dataclass(frozen=True)
class Axis:
    """One direction of the grid: its values, and the settings that each stands for."""

    name: str
    values: Sequence[Value]
    settings: Sequence[Mapping[str, Value]]


@dataclass(frozen=True)
class Sweep:
    """A sweep file, read."""

    name: str
    about: str
    engine: str
    columns: str
    axes: Sequence[Axis]
    seeds: Sequence[int]
    expectations: Sequence[Expectation]
    base: Mapping[str, Any]
    code: Sequence[Path]
    """Where modules of the user's are looked for."""
    strength: Mapping[str, Any] = field(default_factory=dict)
    """`attack.strength`, where the sweep itself sets it: for all of its attacks."""

    def cells(self, home: Path) -> list[Cell]:
        """Every point of the grid, seed by seed, as a checked experiment with a folder below `home`."""
        made: list[Cell] = []
        by_id: dict[str, Cell] = {}
        there = folders(home)
        for point in self._points():
            axes = {axis.name: axis.values[i] for axis, i in zip(self.axes, point[1:], strict=True)}
            settings = {k: v for axis, i in zip(self.axes, point[1:], strict=True) for k, v in axis.settings[i].items()}
            where = " ".join(f"{axis}={show(value)}" for axis, value in axes.items())
            try:
                keys = pin(self._keys({**settings, "seed": self.seeds[point[0]]}), self.code)
                cell = place(home, there, settle(keys, self.name, str(home.parent), folders=self.code), axes, settings)
            except UserError as error:
                raise UserError(f"{self.name}: {where}: {error}" if where else f"{self.name}: {error}") from None
            there[cell.id] = cell.folder.path.name
            same = by_id.setdefault(cell.id, cell)
            if same is not cell and not _both_peaceful(same.settings, settings):
                raise UserError(f"{self.name}: {where} is the same experiment as {same.label}; leave one out")
            made.append(cell)
        return made

    def _keys(self, settings: Mapping[str, Value]) -> dict[str, Any]:
        """A cell's experiment. Where an axis says that nobody attacks, it does not matter what attackers would do."""
        keys = changed(self.base, {**self.strength, **settings})
        if settings.get(ATTACK) != "none":
            return keys
        return {key: value for key, value in keys.items() if key == ATTACK or not key.startswith("attack.")}

    def _points(self) -> Iterator[tuple[int, ...]]:
        """The number of the seed, then that of each axis's value: one seed is complete before the next begins."""
        return itertools.product(range(len(self.seeds)), *(range(len(axis.values)) for axis in self.axes))


def _both_peaceful(one: Mapping[str, Value], other: Mapping[str, Value]) -> bool:
    """Whether two points differ only in what attackers would do, where nobody attacks: they share a cell."""
    return one != other and one.get(ATTACK) == other.get(ATTACK) == "none"


def sweep_names() -> list[str]:
    return sorted(path.stem for path in SWEEPS.glob("*.toml"))


def sweep_about(name: str) -> str:
    return about(SWEEPS / f"{name}.toml")


def find_sweep(source: str) -> Path:
    """A sweep file that comes with Thistle, by name, or the user's own."""
    return find_file(source, SWEEPS, "a sweep that comes with Thistle", "thistle list sweeps")


def read_sweep(source: str | Mapping[str, Any], overrides: Overrides = (), name: str = "") -> Sweep:
    """The file, or in Python what such a file says, with changes for every cell; `name` is the sweep's folder."""
    if isinstance(source, Mapping):
        path, tree, said = Path(name or "sweep"), dict(source), ""
    else:
        path = find_sweep(source)
        tree, said = _tree(path), about(path)
    where = path.name
    for word in tree:
        if word not in WORDS:
            near = difflib.get_close_matches(word, WORDS, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(WORDS)}"
            raise UserError(f"{where}: {word}: no such key; {hint} (settings of every cell go below [set])")
    readers = {"axes": _axes, "zip": _zipped}
    axes = [axis for word, table in tree.items() if word in readers for axis in readers[word](table, where)]
    fixed = _fixed(tree.get("set", {}), where)
    typed = read_overrides(overrides)
    _check_keys(axes, fixed, typed, where)
    columns = tree.get("columns", "")
    if columns and columns not in [axis.name for axis in axes]:
        raise UserError(f"{where}: columns = {columns!r}: should be an axis: {', '.join(a.name for a in axes)}")
    engine = tree.get("engine", "ray")
    if engine not in ("ray", "inline"):
        raise UserError(f"{where}: engine = {engine!r}: should be ray or inline")
    return Sweep(
        name=plain_name(name or path.stem),
        about=said,
        engine=engine,
        columns=columns,
        axes=axes,
        seeds=_seeds(tree.get("seeds", [0]), where),
        expectations=read_expectations(tree.get("expect", []), {axis.name: axis.values for axis in axes}, where),
        base=changed({**DESTROYED, **_preset(tree.get("preset"), path)}, {**fixed, **typed}),
        strength={key: value for key, value in {**fixed, **typed}.items() if key == STRENGTH},
        code=code_folders(path),
    )


def _tree(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"{path}: cannot be read as TOML: {error}") from None


def _preset(name: Any, path: Path) -> dict[str, Any]:
    if name is None:
        return {}
    if not isinstance(name, str):
        raise UserError(f"{path.name}: preset = {name!r}: should be a preset's name or a .toml file beside this one")
    beside = path.parent / name
    source = beside if name not in preset_names() and beside.is_file() else find_experiment(name)
    return {key: value for key, value in read_file(source).items() if not key.startswith("run.") and key != "seed"}


def _fixed(table: Any, where: str) -> dict[str, Any]:
    keys = flatten_tables(_table(table, "set", where))
    for key in keys:
        _check_key(key, "set", where)
    return keys


def _axes(table: Any, where: str) -> list[Axis]:
    found = []
    for key, values in flatten_tables(_table(table, "axes", where)).items():
        _check_key(key, "axes", where)
        _check_values(values, f"{where}: axes.{key}")
        found.append(Axis(key, values, [{key: value} for value in values]))
    return found


def _zipped(table: Any, where: str) -> list[Axis]:
    return [_together(name, keys, where) for name, keys in _table(table, "zip", where).items()]


def _together(name: str, table: Any, where: str) -> Axis:
    """One axis of several settings, each a list of equal length."""
    lists = flatten_tables(_table(table, f"zip.{name}", where))
    labels = lists.pop("labels", None)
    if not lists:
        raise UserError(f"{where}: zip.{name}: needs at least one setting with a list of values")
    if name in KEYS:
        raise UserError(f"{where}: zip.{name}: is the name of a setting; choose another for what changes together")
    for key, values in lists.items():
        _check_key(key, f"zip.{name}", where)
        _check_values(values, f"{where}: zip.{name}.{key}", unique=False)
    lengths = {key: len(values) for key, values in lists.items()}
    if len(set(lengths.values())) > 1:
        raise UserError(f"{where}: zip.{name}: lists must be equally long, but there are {lengths}")
    count = next(iter(lengths.values()))
    settings = [{key: values[i] for key, values in lists.items()} for i in range(count)]
    shown = labels if labels is not None else [", ".join(show(v) for v in point.values()) for point in settings]
    _check_values(shown, f"{where}: zip.{name}.labels")
    if len(shown) != count or not all(isinstance(label, str) for label in shown):
        raise UserError(f"{where}: zip.{name}.labels: should be {count} texts, one for each value")
    return Axis(name, shown, settings)


def _table(value: Any, name: str, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UserError(f"{where}: {name} = {value!r}: should be a table, [{name}]")
    return value


def _check_key(key: str, table: str, where: str) -> None:
    if not known_key(key):
        raise UserError(f"{where}: [{table}] {unknown_key(key)}")
    if key == "seed":
        raise UserError(f"{where}: [{table}] seed: write seeds = [0, 1, 2] at the top instead")
    if key.startswith("run."):
        raise UserError(f"{where}: [{table}] {key}: a sweep names its runs itself; leave it out (the folder is --out)")


def _check_values(values: Any, what: str, unique: bool = True) -> None:
    if not isinstance(values, list) or not values:
        raise UserError(f"{what} = {values!r}: should be a list of values, such as [0.1, 0.3]")
    for value in values:
        if not isinstance(value, bool | int | float | str):
            raise UserError(f"{what}: {value!r}: should be a number, a text or a boolean")
    if unique and len({show(value) for value in values}) < len(values):
        raise UserError(f"{what} = {values!r}: a value stands there twice")


def _seeds(seeds: Any, where: str) -> list[int]:
    whole = isinstance(seeds, list) and all(type(seed) is int and seed >= 0 for seed in seeds)
    if not whole or not seeds or len(set(seeds)) < len(seeds):
        raise UserError(f"{where}: seeds = {seeds!r}: should be a list of different whole numbers, such as [0, 1, 2]")
    return list(seeds)


def _check_keys(axes: Sequence[Axis], fixed: Mapping[str, Any], typed: Mapping[str, Any], where: str) -> None:
    """A setting has one place; the grid is of a size that somebody can mean."""
    seen: dict[str, str] = {}
    for axis in axes:
        for key in axis.settings[0]:
            if key in seen:
                raise UserError(f"{where}: {key}: is in two axes, {seen[key]} and {axis.name}; leave one out")
            seen[key] = axis.name
    for key, place_ in [*((key, "[set]") for key in fixed), *((key, "--set") for key in typed)]:
        if key in seen:
            raise UserError(f"{where}: {place_} {key}: is an axis of this sweep ({seen[key]}); it cannot be fixed too")
    for key in typed:
        if key == "seed" or key.startswith("run."):
            raise UserError(f"--set {key}: a sweep sets it for each cell; use seeds in the file, or --out")
    size = 1
    for axis in axes:
        size *= len(axis.values)
    if size > MOST:
        raise UserError(f"{where}: {size} cells are more than {MOST}; use fewer values or fewer axes")
