"""The same charts for papers, each as PNG, PDF and SVG: white, in a column's width."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from thistle.report.clients import Truth, VerdictLog, distribution
from thistle.report.reading import Run, read_run
from thistle.report.sources import distinct_names
from thistle.report.sweeps import Sweep, as_page, read_sweep

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#7a5195", "#b8860b", "#333333", "#56b4e9")
DASHES = ("-", "--", ":", "-.")
VERDICTS = {
    "accepted": "#a9cfe8",
    "filtered": "#e69f00",
    "rejected": "#b5179e",
    "failed": "#7a828a",
    "almost no weight": "#f0dcae",
}
"""By the code of a cell, from 1."""
KINDS: dict[str, dict[str, None]] = {".png": {}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None}}
"""With what to leave out, so that the same picture is the same file."""
TRUTH = {"honest": "#2b7bba", "malicious": "#d62828", "all": "#2b7bba"}


@contextmanager
def picture(path: Path, xlabel: str, ylabel: str, size: tuple[float, float] = (5.5, 3.4)) -> Iterator[Any]:
    """Axes to draw on, saved at the end."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "thistle"
    from matplotlib import pyplot as plt
    from matplotlib.ticker import MaxNLocator

    figure, axes = plt.subplots(figsize=size, dpi=200, layout="constrained")
    axes.set(xlabel=xlabel, ylabel=ylabel)
    yield axes
    if xlabel == "round":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if axes.get_legend_handles_labels()[1]:
        axes.legend(frameon=False, fontsize="small")
    for kind, metadata in KINDS.items():
        figure.savefig(path.with_suffix(kind), metadata=metadata)
    plt.close(figure)


def look(place: int) -> dict[str, str]:
    dash = DASHES[(place + place // len(COLOURS)) % len(DASHES)]
    return {"color": COLOURS[place % len(COLOURS)], "linestyle": dash}


def draw_all(runs: Sequence[Path], sweeps: Sequence[Path], folder: Path) -> list[Path]:
    """All pictures of these runs and sweeps; returns the files."""
    before = {path: path.stat().st_mtime_ns for path in _drawn(folder)}
    read = [read_run(run, name) for run, name in zip(runs, distinct_names(runs), strict=True)]
    if read:
        _draw_runs(read, folder)
    for run, path in zip(read, runs, strict=True):
        _draw_clients(path, folder, plain(run.name))
    for path in sweeps:
        _draw_sweep(read_sweep(path), folder)
    return sorted(path for path in _drawn(folder) if before.get(path) != path.stat().st_mtime_ns)


def _drawn(folder: Path) -> list[Path]:
    return [path for kind in KINDS for path in folder.glob(f"*{kind}")]


def plain(name: str) -> str:
    """A name that is good for a file."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)


def _draw_runs(runs: Sequence[Run], folder: Path) -> None:
    charts: dict[str, tuple[str, Callable[[Run], Sequence[float | None]]]] = {
        "accuracy": ("test accuracy", lambda run: run.columns.get("accuracy", ())),
        "loss": ("test loss", lambda run: run.columns.get("loss", ())),
        "worst-client": ("worst honest client", lambda run: run.columns.get("client_accuracy.worst", ())),
        "backdoor": ("success of the backdoor", lambda run: run.columns.get("attack_success", ())),
        "seconds": ("seconds per round", lambda run: run.columns.get("seconds", ())),
        "defence": ("seconds of the defence", lambda run: run.columns.get("seconds_defence", ())),
        "traffic": (
            "MB sent by clients",
            lambda run: [None if one is None else one / 1e6 for one in run.columns.get("bytes_up", ())],
        ),
        "precision": ("precision of detection so far", lambda run: detection(run)[0]),
        "recall": ("recall of detection so far", lambda run: detection(run)[1]),
    }
    for name, (label, values) in charts.items():
        if any(one is not None for run in runs for one in values(run)):
            with picture(folder / f"{name}.png", "round", label) as axes:
                for place, run in enumerate(runs):
                    _line(axes, run.columns.get("round", ()), values(run), label=run.name, **look(place))
                classes = {len(run.by_class) for run in runs}
                if name == "accuracy" and len(classes) == 1 and 0 not in classes:
                    axes.axhline(1 / classes.pop(), color="grey", linewidth=0.8, label="guessing")
                axes.grid(alpha=0.3)
    if any(run.withstood for run in runs):
        _draw_bars([run for run in runs if run.withstood], folder / "robust.png")


def _line(axes: Any, x: Sequence[float | None], y: Sequence[float | None], **style: str) -> None:
    known = [(one, two) for one, two in zip(x, y, strict=False) if one is not None and two is not None]
    if not known:
        return
    marker = "o" if len(known) <= 60 else ""
    axes.plot([one for one, _ in known], [two for _, two in known], marker=marker, markersize=3, **style)


def detection(run: Run) -> tuple[list[float | None], list[float | None]]:
    """Precision and recall over all rounds up to each one."""
    names = ("whole.true_positive", "whole.false_positive", "whole.false_negative")
    hits, wrong, missed = (np.cumsum([one or 0 for one in run.columns.get(name, ())]) for name in names)
    if not len(hits) == len(wrong) == len(missed):
        return [], []
    return _shares(hits, hits + wrong), _shares(hits, hits + missed)


def _shares(part: np.ndarray, whole: np.ndarray) -> list[float | None]:
    return [float(one / all_) if all_ else None for one, all_ in zip(part, whole, strict=True)]


def _draw_bars(runs: Sequence[Run], path: Path) -> None:
    attacks = list(dict.fromkeys(attack for run in runs for attack in run.withstood))
    width = 0.8 / len(runs)
    with picture(path, "", "accuracy") as axes:
        for place, run in enumerate(runs):
            at = np.arange(len(attacks)) + (place - (len(runs) - 1) / 2) * width
            heights = [run.withstood.get(attack, 0.0) for attack in attacks]
            axes.bar(at, heights, width, label=run.name, color=look(place)["color"])
        axes.set_xticks(range(len(attacks)), attacks)
        axes.set_ylim(0, 1)


def _draw_clients(run: Path, folder: Path, name: str) -> None:
    log, truth = VerdictLog(run), Truth.read(run)
    log.update()
    if not log.rounds:
        return
    rounds, clients = (np.frombuffer(one, np.int64) for one in (log.rounds, log.clients))
    bad = truth.malicious if truth else frozenset()
    ids = sorted(np.unique(clients).tolist(), key=lambda one: (one not in bad, one))
    rows = {client: row for row, client in enumerate(ids)}
    columns, at = np.unique(rounds, return_inverse=True)
    cells = np.zeros((len(ids), len(columns)), np.uint8)
    cells[[rows[one] for one in clients.tolist()], at] = np.frombuffer(log.codes, np.uint8)
    _draw_map(cells, [one in bad for one in ids], columns, folder / f"clients-{name}.png")
    found = distribution(log, truth)
    if found:
        with picture(folder / f"scores-{name}.png", "score", "share of replies") as axes:
            for kind, group in found["groups"].items():
                axes.stairs(group["shares"], found["edges"], fill=True, alpha=0.55, color=TRUTH[kind], label=kind)
            if found["threshold"]:
                axes.axvline(
                    found["threshold"]["typical"],
                    color="black",
                    linestyle=":",
                    label=f"threshold, keeps what is {found['threshold']['keeps']}",
                )


def _draw_map(cells: np.ndarray, bad: Sequence[bool], rounds: np.ndarray, path: Path) -> None:
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    height = min(8.0, max(2.2, 1.0 + 0.12 * len(cells)))
    with picture(path, "round", "client (malicious first)" if any(bad) else "client", (6.5, height)) as axes:
        palette = ListedColormap(["#ffffff", *VERDICTS.values()])
        extent = (rounds[0] - 0.5, rounds[-1] + 0.5, len(cells), 0)
        axes.imshow(cells, aspect="auto", cmap=palette, vmin=-0.5, vmax=5.5, interpolation="nearest", extent=extent)
        if 0 < sum(bad) < len(bad):
            axes.axhline(sum(bad), color=TRUTH["malicious"], linewidth=1.2)
        axes.set_yticks([])
        patches = [Patch(color=colour, label=kind) for kind, colour in VERDICTS.items()]
        axes.figure.legend(handles=patches, loc="outside upper center", ncols=5, frameon=False, fontsize="small")


def _draw_sweep(sweep: Sweep, folder: Path) -> None:
    page, name = as_page(sweep), plain(sweep.name)
    for found in page["maps"]:
        parts = [name, found["measure"], found["rows"], found["columns"], *found["fixed"].values()]
        _draw_cells(sweep, found, folder / f"{plain('-'.join(parts))}.png", lambda cell: "")
    for found in page["bests"]:
        path = folder / plain(f"{name}-best-{found['measure']}-{found['rows']}-{found['columns']}.png")
        _draw_cells(sweep, found, path, lambda cell: f"{cell['best']}{' *' if cell['significant'] else ''}\n")
    _draw_curves(sweep, page, folder, name)


def _draw_cells(sweep: Sweep, found: dict[str, Any], path: Path, more: Callable[[dict[str, Any]], str]) -> None:
    rows, columns = sweep.axes[found["rows"]], sweep.axes[found["columns"]]
    values = np.full((len(rows), len(columns)), np.nan)
    size = (3.0 + 1.3 * len(columns), 1.4 + 0.6 * len(rows))
    with picture(path, found["columns"], found["rows"], size) as axes:
        for cell in found["cells"]:
            at = rows.index(cell["row"]), columns.index(cell["column"])
            values[at] = cell["mean"]
            error = "" if cell["error"] is None else f" ± {100 * cell['error']:.1f}"
            text = f"{more(cell)}{100 * cell['mean']:.1f}{error}{lead(cell)}"
            ink = "black" if cell["mean"] > 0.5 else "white"
            axes.text(at[1], at[0], text, ha="center", va="center", color=ink, fontsize="small")
        image = axes.imshow(100 * values, vmin=0, vmax=100, cmap="viridis", aspect="auto")
        axes.figure.colorbar(image, ax=axes, label=f"{found['measure']}, %")
        title = ", ".join(
            [*found["fixed"].values(), "the best defence" if "best" in found["cells"][0] else "worst case"]
        )
        axes.set_title(f"{sweep.name}: {title}", fontsize="medium")
        axes.set_xticks(range(len(columns)), columns)
        axes.set_yticks(range(len(rows)), rows)


def lead(cell: dict[str, Any]) -> str:
    """Marks the best defence: with a star where the next one is significantly behind."""
    return " *" if cell.get("significant") and "leads" in cell else " •" if cell.get("leads") else ""


def _draw_curves(sweep: Sweep, page: dict[str, Any], folder: Path, name: str) -> None:
    """One picture for each combination of the other axes, one curve per defence."""
    main = sweep.strategy or next(iter(sweep.axes))
    together: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for one in page["curves"]:
        if one["rounds"]:
            others = tuple(value for key, value in one["axes"].items() if key != main)
            together.setdefault(others, []).append(one)
    for others, curves in together.items():
        with picture(folder / f"{plain('-'.join([name, 'curves', *others]))}.png", "round", "test accuracy") as axes:
            for one in curves:
                own = look(sweep.axes[main].index(one["axes"][main]))
                axes.plot(one["rounds"], one["mean"], label=one["axes"][main], **own)
                axes.fill_between(one["rounds"], one["low"], one["high"], color=own["color"], alpha=0.18, linewidth=0)
            axes.grid(alpha=0.3)
