"""Static pictures of runs, for papers and for the demo."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from exchange.runfolder import RunFolder, read_lines


def draw_accuracy(runs: Mapping[str, RunFolder], title: str, path: Path) -> None:
    """Accuracy over rounds, one curve a run, as PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), dpi=150)
    for name, folder in runs.items():
        lines = [line for line in read_lines(folder.metrics) if line.get("accuracy") is not None]
        axes.plot([line["round"] for line in lines], [line["accuracy"] for line in lines], marker="o", ms=3, label=name)
    axes.set(xlabel="round", ylabel="test accuracy", title=title, ylim=(0, 1))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
