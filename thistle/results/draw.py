"""Static pictures of runs, for papers and for the demo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

from thistle.experiments.runfolder import RunFolder, read_lines

if TYPE_CHECKING:
    from torch import Tensor, nn


def draw_accuracy(panels: Mapping[str, Mapping[str, RunFolder]], path: Path) -> None:
    """Accuracy over rounds, one curve per run, as PNG; runs with the same title share a panel."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, grid = plt.subplots(1, len(panels), figsize=(6 * len(panels), 4), dpi=150, sharey=True, squeeze=False)
    for axes, (title, runs) in zip(grid[0], panels.items(), strict=True):
        for (name, folder), marker in zip(runs.items(), cycle("os^Dv"), strict=False):
            lines = [line for line in read_lines(folder.metrics) if line.get("accuracy") is not None]
            numbers, values = [line["round"] for line in lines], [line["accuracy"] for line in lines]
            axes.plot(numbers, values, marker=marker, ms=4, label=name)
        axes.set(xlabel="round", title=title, ylim=(0, 1))
        axes.grid(alpha=0.3)
    grid[0][0].set_ylabel("test accuracy")
    grid[0][-1].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def draw_by_class(accuracies: Mapping[str, Mapping[str, float | None]], title: str, path: Path) -> None:
    """Accuracy of each class under each attack, as bars side by side."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    classes = list(next(iter(accuracies.values())))
    width = 0.8 / len(accuracies)
    figure, axes = plt.subplots(figsize=(max(7.0, 0.25 * len(classes) * len(accuracies)), 4), dpi=150)
    for number, (attack, by_class) in enumerate(accuracies.items()):
        places = [place + (number - (len(accuracies) - 1) / 2) * width for place in range(len(classes))]
        axes.bar(places, [by_class[one] or 0.0 for one in classes], width, label=attack)
    axes.set(xlabel="class", ylabel="accuracy", title=title, ylim=(0, 1))
    axes.set_xticks(range(len(classes)), classes, rotation=0 if max(map(len, classes)) < 4 else 45)
    axes.grid(axis="y", alpha=0.3)
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def draw_features(network: nn.Module, pixels: Tensor, labels: Tensor, classes: Sequence[str], path: Path) -> None:
    """What the last layer sees of these images, in two dimensions (t-SNE), one colour per class."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt
    from sklearn.manifold import TSNE

    from thistle.tasks.models.layers import penultimate

    features = penultimate(network, pixels).cpu().numpy()
    perplexity = min(30.0, max(1.0, (len(features) - 1) / 3))
    places = TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(features)
    figure, axes = plt.subplots(figsize=(6.5, 5), dpi=150)
    colours = plt.get_cmap("tab10" if len(classes) <= 10 else "nipy_spectral", len(classes))
    for number, name in enumerate(classes):
        chosen = (labels == number).cpu().numpy()
        axes.scatter(places[chosen, 0], places[chosen, 1], s=8, color=colours(number), label=name)
    axes.set(title=f"features of {len(features)} test images (t-SNE)", xticks=[], yticks=[])
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0), ncols=1 + len(classes) // 20)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
