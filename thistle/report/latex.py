"""Tables of runs, sweeps and searches as LaTeX (booktabs), one file per table, to be \\input into a paper."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path

from thistle.experiments.runfolder import write_atomically
from thistle.report.pictures import plain
from thistle.report.reading import Run, number, read_run
from thistle.report.sources import titles
from thistle.report.statistics import mean_and_error, over_seeds
from thistle.report.sweeps import Group, Sweep, leaders, pick, read_sweep
from thistle.results.shown import FIGURES, mean_of

SPECIAL = {
    "\\": r"\textbackslash{}",
    **{char: f"\\{char}" for char in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "–": "--",
    "−": "$-$",
    "×": r"$\times$",
}
GREEK = re.compile(r"GREEK SMALL LETTER (\w+)$")
BEST = "Bold: the best of its row."
LED = r"Bold: the best of its row; $^*$: better than the next (Welch's $t$-test over seeds, 5\,\%, Holm)."


def write_tables(runs: Sequence[Path], sweeps: Sequence[Path], folder: Path) -> list[Path]:
    """All tables of these; returns the files."""
    made: dict[str, str] = {}
    read = [read_run(run, name) for run, name in zip(runs, titles(runs), strict=True)]
    if read:
        made["runs"] = _runs(read)
    for path in sweeps:
        sweep = read_sweep(path)
        made |= {plain(f"{sweep.name}-{name}"): text for name, text in _sweep(sweep).items()}
    for name, text in made.items():
        write_atomically(folder / f"{name}.tex", text.encode())
    return [folder / f"{name}.tex" for name in made]


def table(header: Sequence[str], rows: Sequence[Sequence[str]], caption: str, label: str, words: int) -> str:
    """Cells are LaTeX already; the first `words` columns are text, the others numbers."""
    lines = [" & ".join(row) + r" \\" for row in rows]
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{caption}}}",
            rf"\label{{tab:{label}}}",
            rf"\begin{{tabular}}{{{'l' * words}{'r' * (len(header) - words)}}}",
            r"\toprule",
            " & ".join(header) + r" \\",
            r"\midrule",
            *lines,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def escaped(text: str) -> str:
    """For LaTeX."""
    return "".join(SPECIAL.get(char) or _letter(char) for char in text)


def _letter(char: str) -> str:
    """γ is \\gamma."""
    greek = GREEK.match(unicodedata.name(char, ""))
    return f"$\\{greek[1].lower().replace('lamda', 'lambda')}$" if greek else char


def spread(values: Sequence[float], times: float = 100) -> str:
    """`91.2 $\\pm$ 0.4`."""
    if not values:
        return "--"
    mean, error = mean_and_error(values)
    return f"{times * mean:.1f}" + ("" if error is None else rf" $\pm$ {times * error:.1f}")


def _runs(runs: Sequence[Run]) -> str:
    """The figures that any of them has, one row per run."""
    shares = [figure for figure in FIGURES if figure.unit == "share"]
    found = {figure.name: [number(figure.of(run.summary)) for run in runs] for figure in shares}
    known = {name: values for name, values in found.items() if any(value is not None for value in values)}
    rows = [
        [
            escaped(run.name),
            *(spread([one for one in values[place : place + 1] if one is not None]) for values in known.values()),
        ]
        for place, run in enumerate(runs)
    ]
    averaged = mean_of(number(run.summary.get("evaluations_averaged")) for run in runs)
    caption = escaped(f"Accuracy, and what the defence decided, in %. Mean of the last k: {averaged}.")
    return table(["run", *map(escaped, known)], rows, caption, "runs", 1)


def _sweep(sweep: Sweep) -> dict[str, str]:
    """A table per measure; of a search also its worst cases."""
    made = {measure: _by_defence(sweep, measure) for measure in sweep.measures}
    if sweep.stress is not None:
        made["worst-case"] = _worst_cases(sweep.stress, sweep.name)
    return made


def _by_defence(sweep: Sweep, measure: str) -> str:
    """Defences side by side (or the last axis), everything else down."""
    across = sweep.strategy or list(sweep.axes)[-1]
    others = [axis for axis in sweep.axes if axis != across]
    lines: dict[tuple[str, ...], dict[str, Group]] = {}
    for point in product(*(sweep.axes[axis] for axis in others)):
        here = pick(sweep.groups, **dict(zip(others, point, strict=True)))
        if line := {group.axes[across]: group for group in here if measure in group.values}:
            lines[point] = line
    best = zip(*leaders([list(line.values()) for line in lines.values()], measure), strict=True)
    marks = {id(group): sure for group, sure in best} if sweep.strategy else {}
    rows = [
        [*map(escaped, point), *(_cell(line.get(name), measure, marks) for name in sweep.axes[across])]
        for point, line in lines.items()
    ]
    seeds = max((len(group.values.get(measure, ())) for group in sweep.groups), default=0)
    caption = escaped(f"{measure[:1].upper()}{measure[1:]} in %, {over_seeds(seeds)}.")
    return table(
        [*map(escaped, others), *map(escaped, sweep.axes[across])],
        rows,
        f"{caption} {LED if seeds > 1 else BEST}" if sweep.strategy else caption,
        plain(f"{sweep.name}-{measure}"),
        len(others),
    )


def _cell(group: Group | None, measure: str, marks: Mapping[int, bool]) -> str:
    """`marks`: the best groups, and whether the next one is significantly behind."""
    text = spread(group.values[measure]) if group else "--"
    if id(group) not in marks:
        return text
    return rf"\textbf{{{text}}}" + ("$^*$" if marks[id(group)] else "")


def _worst_cases(stress: Mapping[str, object], name: str) -> str:
    results = stress["results"]
    assert isinstance(results, list)
    success = any(one["success"] for one in results)
    measures: list[tuple[str, Callable[[Mapping], object]]] = [("accuracy, %", lambda one: one["accuracy"])]
    if success:
        measures.insert(0, ("success, %", lambda one: one["success"]))
    rows = [
        [
            rf"{100 * one['fraction']:g}\,\%",
            escaped(one["label"]),
            *(_measured(of(one)) for _, of in measures),
            _measured(stress["no_attack"]["accuracy"]),  # type: ignore[index]
        ]
        for one in results
    ]
    header = ["malicious", "worst attack", *(escaped(title) for title, _ in measures), r"no attack, \%"]
    about = f"The worst case of {stress['strategy']} over the suite {stress['suite']}: mean ± standard error."
    return table(header, rows, escaped(about), plain(f"{name}-worst-case"), 2)


def _measured(cell: object) -> str:
    if not isinstance(cell, Mapping):
        return "--"
    error = cell["error"]
    return f"{100 * cell['mean']:.1f}" + ("" if error is None else rf" $\pm$ {100 * error:.1f}")
