"""`thistle list`: what there is to choose from."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated

import typer

from thistle.prepare import preset_about, preset_names
from thistle.screen import results, table
from thistle.sweeps.files import sweep_about, sweep_names

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


def list_(what: Annotated[What | None, typer.Argument(help="Which table; default: all of them.")] = None) -> None:
    """List tasks, models, strategies, attacks in training and at test time, client training, presets and sweeps."""
    for one in [what] if what else list(What):
        columns, rows = TABLES[one]()
        results.print(table(TITLES.get(one, one.value), columns, rows))
        results.print()


def _tasks() -> tuple[list[str], list[list[str]]]:
    from thistle.tasks.sources import TASKS

    return ["name", "what"], [[name, about] for name, about in TASKS.items()]


def _models() -> tuple[list[str], list[list[str]]]:
    from thistle.tasks.models import MODELS

    return ["name", "what"], [*([name, _about(build)] for name, build in MODELS.items()), [OWN, "your own"]]


def _strategies() -> tuple[list[str], list[list[str]]]:
    from thistle.strategies.registry import about, strategies

    rows = [[name, about(cls), cls.paper] for name, cls in strategies().items()]
    return ["name", "what", "paper"], [*rows, [OWN, "your own", ""]]


def _attacks() -> tuple[list[str], list[list[str]]]:
    from thistle.attacks.registry import Own, PoisoningAttack, about, attacks, strength_of

    named: dict[str, type[PoisoningAttack]] = {**attacks(), OWN: Own}
    rows = [[name, about(cls), cls.knows, strength_of(cls) or "–", cls.paper] for name, cls in named.items()]
    return ["name", "what", "knows", "attack.strength", "paper"], rows


def _objectives() -> tuple[list[str], list[list[str]]]:
    from thistle.client.objectives import ABOUT

    return ["name", "what is minimised", "paper"], [[name, *about] for name, about in ABOUT.items()]


def _calibrations() -> tuple[list[str], list[list[str]]]:
    from thistle.client.calibrations import CALIBRATIONS

    return ["name", "instead of the logits f"], [[name, _about(view)] for name, view in CALIBRATIONS.items()]


def _evasions() -> tuple[list[str], list[list[str]]]:
    from thistle.attacks.evasion.table import EVASIONS, OTHERS

    rows = [[name, entry.about, entry.paper] for name, entry in EVASIONS.items()]
    return ["name", "what", "paper"], [*rows, *([name, about, ""] for name, about in OTHERS.items())]


def _about(thing: object) -> str:
    """The first paragraph of its docstring."""
    return " ".join((thing.__doc__ or "").partition("\n\n")[0].split())


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
