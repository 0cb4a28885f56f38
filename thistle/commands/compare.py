"""`thistle compare`: compare runs with a clean one, in the figures of DSVD-FL's paper."""

from __future__ import annotations

import csv
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from thistle.commands.options import Out
from thistle.commands.resume import find_run
from thistle.experiments.errors import UserError
from thistle.results.figures import Finished
from thistle.terminal.screen import results, say, table

FIGURES = {
    "strategy": "strategy",
    "attack": "attack",
    "average": "average accuracy",
    "last": "last accuracy",
    "maximum": "best accuracy",
    "final": "mean of the last k evaluations",
    "averaged": "k",
    "deviation": "standard deviation",
    "after_convergence": "average once converged",
    "convergence": "converged in round",
    "seconds_per_round": "seconds per round",
    "seconds_to_maximum": "seconds to the best",
    "degradation": "accuracy degradation",
    "tolerance": "attack tolerance",
    "quotient": "robustness quotient",
}
"""A figure's name in the CSV file, and in the table."""


def compare(
    clean: Annotated[str, typer.Argument(metavar="CLEAN_RUN", help="A finished run without an attack.")],
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Finished runs to compare with it.")],
    out: Out = "runs",
    file: Annotated[str, typer.Option("--csv", metavar="FILE", help="Also write the figures to this file.")] = "",
) -> None:
    """Compare finished runs with a clean one: accuracy, speed, and the cost of an attack."""
    reference = Finished.read(find_run(clean, out))
    attack = reference.experiment.attack
    if attack.kind != "none":
        raise UserError(f"{clean}: is not a clean run (attack.kind = {attack.kind}); name one without an attack first")
    others = [Finished.read(find_run(run, out)) for run in runs]
    for other in others:
        _check_same_task(reference, other)
    rows = [_row(run, reference) for run in (reference, *others)]
    lines = [[name, *(_text(row[key]) for row in rows)] for key, name in FIGURES.items()]
    results.print(table("", ["", *(row["run"] for row in rows)], lines))
    if file:
        _write(Path(file).expanduser(), rows)
        say(f"written to {file}")


def _check_same_task(clean: Finished, other: Finished) -> None:
    ours, theirs = clean.experiment.task.name, other.experiment.task.name
    if ours != theirs:
        raise UserError(f"{other.folder.path}: task.name = {theirs}, but the clean run's is {ours}")


def _row(run: Finished, clean: Finished) -> dict[str, Any]:
    attack = run.experiment.attack
    about = {
        "run": run.folder.path.name,
        "strategy": run.experiment.strategy.name,
        "attack": attack.kind if attack.kind == "none" else f"{attack.kind} {run.malicious:.0%}",
    }
    return {**about, **asdict(run.figures()), **asdict(run.against(clean))}


def _text(value: Any) -> str:
    return "–" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, ["run", *FIGURES])
            writer.writeheader()
            writer.writerows(rows)
    except OSError as error:
        raise UserError(f"--csv {path}: cannot be written: {error.strerror}") from None
