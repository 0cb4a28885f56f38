"""A search for people: tables, stress.md, a map, and sweep.json.

sweep.json makes the folder a sweep of attacks × fractions, each attack with its worst settings: the report shows that.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from thistle.attacks.stress.suite import SUITES, VERSION
from thistle.experiments.runfolder import write_atomically
from thistle.experiments.settings import Value
from thistle.report.statistics import over_seeds
from thistle.sweeps.cells import Cell
from thistle.sweeps.files import Axis, Sweep
from thistle.sweeps.tables import markdown, spread, write_plan
from thistle.worst_case.document import Found
from thistle.worst_case.pictures import draw_map
from thistle.worst_case.question import NOBODY
from thistle.worst_case.trials import ACCURACY, Trial

KIND, FRACTION = "attack.kind", "attack.fraction"
Table = tuple[list[str], list[list[str]]]


def write_files(found: Found, home: Path) -> None:
    """All but stress.json."""
    cells = _sweep_cells(found)
    write_plan(_as_sweep(found), cells, home)
    write_atomically(home / "stress.md", _markdown(found).encode())
    draw_map(found, home / "stress.png")


def worst_table(found: Found, suite: str) -> Table:
    """The answer: a row for each fraction."""
    rows = [_worst_row(found, row) for row in found.results if row["suite"] == suite]
    success = ["success, %"] if suite == "backdoor" else []
    return ["attackers", *success, "accuracy, %", "attack", "accuracy without attack, %"], rows


def _worst_row(found: Found, row: dict[str, Any]) -> list[str]:
    seeds = found.plan.seeds
    success = [spread(row["success_by_seed"], seeds)] if row["suite"] == "backdoor" else []
    nobody = spread(found.nobody.values(ACCURACY), seeds)
    return [percent(row["fraction"]), *success, spread(row["accuracy_by_seed"], seeds), row["label"], nobody]


def kinds_table(found: Found, suite: str) -> Table:
    """Every attack at its worst settings, the most harmful first."""
    fractions = found.question.fractions
    rows = []
    for kind, trials in found.by_kind(suite).items():
        rows.append([kind, *(_cell(found, trials.get(fraction)) for fraction in fractions)])
    return ["attack", *map(percent, fractions)], rows


def _cell(found: Found, trial: Trial | None) -> str:
    if trial is None:
        return "–"
    return ", ".join(filter(None, [spread(trial.harm, found.plan.seeds), trial.candidate.words]))


def percent(share: float) -> str:
    return f"{100 * share:g} %"


def _markdown(found: Found) -> str:
    question, plan = found.question, found.plan
    experiment = found.nobody.cells[0].experiment
    parts = [
        f"# {question.name}: the worst case of {experiment.strategy.name} on {experiment.task.name}",
        f"Suite {VERSION}, {question.suite}. Figures in %: {over_seeds(plan.seeds)}. "
        f"Runs of {plan.rounds} rounds, short ones of {plan.pause}."
        + (f" Shortened to fit into {question.budget:g} minutes." if plan.shortened else ""),
        "\n".join(f"- {row['quote']}" for row in found.results),
    ]
    for suite in SUITES[question.suite]:
        measured = "success of the attack" if suite == "backdoor" else "accuracy"
        parts += [f"## Worst case: {suite}", markdown(*worst_table(found, suite))]
        parts += [f"## Every attack at its worst settings: {measured}", markdown(*kinds_table(found, suite))]
    if found.left_out:
        parts += ["## Left out", "\n".join(f"- {one.candidate.label}: {one.reason}" for one in found.left_out)]
    if found.failed:
        parts += ["## Failed", "\n".join(f"- {label}: {message}" for label, message in found.failed.items())]
    return "\n\n".join(parts) + "\n"


def _as_sweep(found: Found) -> Sweep:
    question = found.question
    kinds = [kind for suite in SUITES[question.suite] for kind in found.by_kind(suite)]
    axes: dict[str, list[Value]] = {KIND: [*kinds, NOBODY.kind], FRACTION: list(question.fractions)}
    return Sweep(
        name=question.name,
        about=f"{VERSION}: every attack at its worst settings",
        engine="inline",
        columns=FRACTION,
        axes=[Axis(name, values, [{name: value} for value in values]) for name, values in axes.items()],
        seeds=range(found.plan.seeds),
        expectations=[],
        base=question.base,
        code=question.code,
    )


def _sweep_cells(found: Found) -> list[Cell]:
    """The no-attack runs stand beside every fraction."""
    shown = [
        trial
        for suite in SUITES[found.question.suite]
        for row in found.by_kind(suite).values()
        for trial in row.values()
    ]
    nobody = [replace(found.nobody, fraction=fraction) for fraction in found.question.fractions]
    return [
        replace(cell, axes={KIND: trial.candidate.kind, FRACTION: trial.fraction})
        for trial in (*shown, *nobody)
        for cell in trial.cells
    ]
