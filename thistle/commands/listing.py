"""`thistle list`: what you can choose from."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.padding import Padding
from rich.text import Text

from thistle.experiments.errors import UserError
from thistle.experiments.plugins import pin
from thistle.experiments.registry import Registry
from thistle.running.prepare import preset_about, preset_names
from thistle.sweeps.files import sweep_about, sweep_names
from thistle.terminal.screen import results, table

OWN = "MODULE:FACTORY"
"""A function in a file of the user's: docs/own.md."""


class What(StrEnum):
    """The tables that can be listed."""

    TASKS = "tasks"
    MODELS = "models"
    STRATEGIES = "strategies"
    ATTACKS = "attacks"
    OBJECTIVES = "objectives"
    CALIBRATIONS = "calibrations"
    EVASIONS = "evasions"
    PRESETS = "presets"
    SWEEPS = "sweeps"


def list_(
    what: Annotated[What | None, typer.Argument(help="Which table; default: all of them.")] = None,
    name: Annotated[str, typer.Argument(help="Only this row; for a strategy, also its settings.")] = "",
) -> None:
    """List tasks, models, strategies, attacks (training and test time), client training, presets and sweeps."""
    if what is What.STRATEGIES and name:
        _show_strategy(name)
        return
    for one in [what] if what else list(What):
        columns, rows = TABLES[one]()
        _show(TITLES.get(one, one.value), columns, [_named(one, name, rows)] if name else rows)


def _show(title: str, columns: list[str], rows: list[list[str]]) -> None:
    results.print(table(title, columns, rows))
    results.print()


def _named(what: What, name: str, rows: list[list[str]]) -> list[str]:
    """The row with this name, or an error that suggests the nearest."""
    known = {row[0]: row for row in rows}
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UserError(f"{name!r} is not in the list of {what.value}{hint} (thistle list {what.value})")
    return known[name]


def _show_strategy(name: str) -> None:
    """One strategy with its settings: its own, then those that all pipelines have."""
    from thistle.reference.rows import own_rows, strategy_rows
    from thistle.strategies.build import KEY, find
    from thistle.strategies.registry import about

    cls = find(pin({KEY: name}, [Path.cwd()])[KEY])
    _show("strategies", ["name", "what", "paper"], [[name, about(cls), cls.paper]])
    own = own_rows(cls)
    common = [row for row in strategy_rows(cls) if row not in own]
    for title, rows in {"its settings": own, "common settings": common}.items():
        if rows:
            results.print(title)
        for row in rows:
            _, kind, default, meaning = row.plain
            results.print(Padding(Text(f"{row.key} = {default}  ({kind})"), (0, 0, 0, 2)))
            results.print(Padding(Text(meaning), (0, 0, 0, 6)))


def _tasks() -> tuple[list[str], list[list[str]]]:
    from thistle.tasks.sources.registry import SOURCES

    return ["name", "what", "paper"], [*_rows(SOURCES), [OWN, "your function, which makes the same arrays", ""]]


def _models() -> tuple[list[str], list[list[str]]]:
    from thistle.tasks.models import MODELS

    return ["name", "what", "paper"], [*_rows(MODELS), [OWN, "your own", ""]]


def _strategies() -> tuple[list[str], list[list[str]]]:
    from thistle.strategies.registry import about, strategies

    rows = [[name, about(cls), cls.paper] for name, cls in strategies().items()]
    return ["name", "what", "paper"], [*rows, [OWN, "your own", ""]]


def _attacks() -> tuple[list[str], list[list[str]]]:
    from thistle.attacks.registry import Own, PoisoningAttack, about, attacks, default_strength, strength_of

    named: dict[str, type[PoisoningAttack]] = {**attacks(), OWN: Own}
    rows = [
        [name, about(cls), cls.knows, strength_of(cls) or "–", default_strength(cls), cls.paper]
        for name, cls in named.items()
    ]
    return ["name", "what", "knows", "attack.strength", "default", "paper"], rows


def _objectives() -> tuple[list[str], list[list[str]]]:
    from thistle.attacks.training.objectives import OBJECTIVES

    return ["name", "what is minimised", "paper"], _rows(OBJECTIVES)


def _calibrations() -> tuple[list[str], list[list[str]]]:
    from thistle.attacks.training.calibrations import CALIBRATIONS

    return ["name", "instead of the logits f", "paper"], _rows(CALIBRATIONS)


def _evasions() -> tuple[list[str], list[list[str]]]:
    from thistle.attacks.evasion.table import EVASIONS, OTHERS

    rows = [[name, entry.about, entry.paper] for name, entry in EVASIONS.items()]
    return ["name", "what", "paper"], [*rows, *([name, about, ""] for name, about in OTHERS.items())]


def _rows(registry: Registry[Any]) -> list[list[str]]:
    """Name, description and paper of everything in it."""
    return [[name, entry.about, entry.paper] for name, entry in registry.entries().items()]


def _presets() -> tuple[list[str], list[list[str]]]:
    return ["name", "what"], [[name, preset_about(name)] for name in preset_names()]


def _sweeps() -> tuple[list[str], list[list[str]]]:
    return ["name", "what"], [[name, sweep_about(name)] for name in sweep_names()]


TABLES: dict[What, Callable[[], tuple[list[str], list[list[str]]]]] = {
    What.TASKS: _tasks,
    What.MODELS: _models,
    What.STRATEGIES: _strategies,
    What.ATTACKS: _attacks,
    What.OBJECTIVES: _objectives,
    What.CALIBRATIONS: _calibrations,
    What.EVASIONS: _evasions,
    What.PRESETS: _presets,
    What.SWEEPS: _sweeps,
}

TITLES = {
    What.OBJECTIVES: "objectives (client.objective)",
    What.CALIBRATIONS: "calibrations (client.calibration)",
    What.EVASIONS: "evasions (evaluate.attacks, thistle evaluate --attacks)",
}
