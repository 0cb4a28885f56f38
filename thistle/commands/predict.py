"""`thistle predict`: classify images, or the rows of a table, with a run's final model."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from thistle.commands.options import Out
from thistle.experiments.errors import UserError
from thistle.terminal.screen import results, table

if TYPE_CHECKING:
    from thistle.results.trained import Prediction

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp")


def predict(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder, or a run's name below --out.")],
    images: Annotated[
        list[str],
        typer.Argument(
            metavar="IMAGE...",
            help="Image files of any size, or a directory of them; for a table model: a CSV or Parquet file.",
        ),
    ],
    top: Annotated[int, typer.Option(min=1, help="How many classes to show per image.")] = 3,
    file: Annotated[str, typer.Option("--csv", metavar="FILE", help="Write every class's probability.")] = "",
    out: Out = "runs",
) -> None:
    """Classify images, or the rows of a table, with a run's final model."""
    files = find_images(images)
    from thistle.results.trained import load_trained

    model = load_trained(run, out)
    if model.facts.scheme:
        if len(files) != 1:
            raise UserError(f"the model of {run} classifies rows of a table: name one CSV or Parquet file")
        predictions = {f"row {number}": one for number, one in enumerate(model.predict(files[0]), start=1)}
    else:
        predictions = dict(zip(map(str, files), model.predict(files), strict=True))
    if file:
        write_csv(Path(file).expanduser(), model.classes, predictions)
    rows = []
    for name, prediction in predictions.items():
        likely = list(prediction.probabilities.items())[:top]
        rows.append([name, *(f"{label} {probability:.1%}" for label, probability in likely)])
    others = [f"{number}." for number in range(2, len(rows[0]))]
    results.print(table("", ["row" if model.facts.scheme else "image", "class", *others], rows))
    if file:
        results.print(f"figures: {file}", markup=False, soft_wrap=True)


def find_images(names: list[str]) -> list[Path]:
    """The files that were named, and those in the directories that were named, by their names."""
    found: list[Path] = []
    for path in (Path(name).expanduser() for name in names):
        if not path.exists():
            raise UserError(f"{path}: no such file")
        if not path.is_dir():
            found.append(path)
            continue
        inside = sorted(file for file in path.iterdir() if file.suffix.lower() in SUFFIXES and file.is_file())
        if not inside:
            raise UserError(f"{path}: no images in this directory ({', '.join(SUFFIXES)})")
        found += inside
    return list(dict.fromkeys(found))


def write_csv(path: Path, classes: tuple[str, ...], predictions: dict[str, Prediction]) -> None:
    """One line per image: its class, and the probability of that and of every class."""
    try:
        with path.open("w", encoding="utf-8", newline="") as target:
            writer = csv.writer(target)
            writer.writerow(["image", "class", "probability", *(f"p({name})" for name in classes)])
            for name, one in predictions.items():
                row = [one.probabilities[label] for label in classes]
                writer.writerow([name, one.label, one.probability, *row])
    except OSError as error:
        raise UserError(f"--csv {path}: cannot be written: {error.strerror}") from None
