"""The map of a search: attacks × fractions, the worst case outlined."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thistle.attacks.stress.suite import SUITES, VERSION
from thistle.report.statistics import mean_and_error

if TYPE_CHECKING:
    from thistle.worst_case.document import Found
    from thistle.worst_case.trials import Trial


def draw_map(found: Found, path: Path) -> None:
    """A panel for each suite that has found something; numbers are per cent, with the settings that did it."""
    from matplotlib.figure import Figure  # not pyplot: a notebook's own backend stays as it is

    suites = {suite: rows for suite in SUITES[found.question.suite] if (rows := found.by_kind(suite))}
    if not suites:
        return
    tallest, columns = max(map(len, suites.values())), len(found.question.fractions)
    size = ((2.4 + 1.8 * columns) * len(suites) + 1.0, 1.8 + 0.42 * tallest)
    figure = Figure(figsize=size, dpi=150, layout="constrained")
    panels = figure.subplots(1, len(suites), squeeze=False)[0]
    for axes, (suite, rows) in zip(panels, suites.items(), strict=True):
        _draw_panel(figure, axes, found, suite, rows)
    experiment = found.nobody.cells[0].experiment
    limit = f", within {found.question.budget:g} min" if found.plan.shortened else ""
    figure.suptitle(f"{VERSION}{limit}: {experiment.strategy.name} on {experiment.task.name}")
    figure.savefig(path)


def _draw_panel(figure: Any, axes: Any, found: Found, suite: str, rows: dict[str, dict[float, Trial]]) -> None:
    fractions = found.question.fractions
    values = [[_mean(row.get(fraction)) for fraction in fractions] for row in rows.values()]
    backdoor = suite == "backdoor"
    colours = "viridis_r" if backdoor else "viridis"
    image = axes.imshow(values, vmin=0, vmax=100, cmap=colours, aspect="auto")
    for y, row in enumerate(rows.values()):
        for x, fraction in enumerate(fractions):
            if trial := row.get(fraction):
                dark = (values[y][x] > 50) if backdoor else (values[y][x] <= 50)
                axes.text(x, y, _text(trial), ha="center", va="center", fontsize=7, color="white" if dark else "black")
    for worst in found.results:
        if worst["suite"] == suite:
            _outline(axes, list(rows).index(worst["attack"]), list(fractions).index(worst["fraction"]))
    axes.set_xticks(range(len(fractions)), [f"{100 * fraction:g} %" for fraction in fractions])
    axes.set_yticks(range(len(rows)), list(rows))
    what = "success of the attack" if backdoor else "accuracy"
    axes.set(xlabel="malicious clients", title=f"{what}; outlined: the worst case\nwithout ±: one seed")
    axes.title.set_fontsize("medium")
    figure.colorbar(image, ax=axes, label=f"{what}, %")


def _mean(trial: Trial | None) -> float:
    return 100 * mean_and_error(trial.harm)[0] if trial else math.nan


def _text(trial: Trial) -> str:
    mean, error = mean_and_error(trial.harm)
    around = "" if error is None else f" ± {100 * error:.1f}"
    return "\n".join(filter(None, [f"{100 * mean:.1f}{around}", trial.candidate.words]))


def _outline(axes: Any, row: int, column: int) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((column - 0.47, row - 0.47), 0.94, 0.94, fill=False, edgecolor="#d62728", linewidth=2.5))
