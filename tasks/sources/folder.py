"""`folder:PATH`: images as files, in a directory or an archive, one folder a class."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from thistle.experiments.errors import UserError
from thistle.tasks.sources import archive
from thistle.tasks.sources.cache import Workspace
from thistle.tasks.sources.depth import DEEPER, SIXTEEN, in_eight_bits
from thistle.tasks.sources.registry import SOURCES, Found, Wanted

PICTURE_PIXELS = 4096 * 4096
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
GRAY = ("1", "L", "LA", "La", *SIXTEEN, *DEEPER)


@dataclass(frozen=True)
class _Plan:
    """What a first look at all images (their headers) says about the arrays to be filled."""

    classes: tuple[str, ...]
    rows: Mapping[str, int]  # by member name, each split counted from 0
    counts: Mapping[str, int]
    size: tuple[int, int]  # width, height
    mode: str


@SOURCES.add("folder:PATH", "your images: train|test/<class>/<image> in a directory, .tar[.gz|.xz] or .zip")
def folder(wanted: Wanted) -> Found:
    """The images below this path."""
    path = wanted.path
    return Found(["folder", archive.fingerprint(path)], partial(read_folder, path), str(path))


def read_folder(path: Path, work: Workspace) -> tuple[str, ...]:
    """Images in folders, one a class. The first training image sets the size, others are resized.

    All are gray if all were stored gray; one in colour makes them all RGB.
    """
    plan = _survey(path)
    (width, height), channels = plan.size, 1 if plan.mode == "L" else 3
    arrays = {split: work.arrays(split, (n, channels, height, width)) for split, n in plan.counts.items()}
    done, total = 0, len(plan.rows)
    for done, entry in enumerate(archive.entries(path), start=1):
        row = plan.rows.get(entry.name)
        if row is None:
            break
        arrays[entry.split].pixels[row] = _decode(path, entry, plan.size, plan.mode)
        arrays[entry.split].labels[row] = plan.classes.index(entry.label)
        if work.progress and (done % 500 == 0 or done == total):
            work.progress(done, total)
    if done != total:
        raise UserError(f"{path}: changed while it was read")
    return plan.classes


def _survey(path: Path) -> _Plan:
    """Look at every image's header, so that a bad one is found before anything is written."""
    names: dict[str, list[tuple[str, str]]] = {"train": [], "test": []}
    sizes: dict[str, tuple[int, int]] = {}
    gray = True
    for entry in archive.entries(path):
        sizes[entry.name], mode = _header(path, entry)
        names[entry.split].append((entry.label, entry.name))
        gray = gray and mode in GRAY
    if not names["train"]:
        raise UserError(f"{path}: no training images; expected train/<class>/<image>")
    for found in names.values():
        found.sort(key=lambda item: archive.order(*item))
    rows = {name: row for found in names.values() for row, (_, name) in enumerate(found)}
    classes = tuple(sorted({label for found in names.values() for label, _ in found}))
    counts = {split: len(found) for split, found in names.items()}
    return _Plan(classes, rows, counts, sizes[names["train"][0][1]], "L" if gray else "RGB")


def read_picture(path: Path, channels: int) -> np.ndarray:
    """One image file as it is, grey (1) or in colour (3): c×h×w, uint8."""
    try:
        entry = archive.Entry("", "", path.name, path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    size, _ = _header(path.parent, entry)
    return _decode(path.parent, entry, size, "L" if channels == 1 else "RGB")


def _header(path: Path, entry: archive.Entry) -> tuple[tuple[int, int], str]:
    """Size and mode, from the first bytes of the file; a picture too large to decode is refused."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # our own limit is lower
            with Image.open(io.BytesIO(entry.data), formats=FORMATS) as image:
                size, mode = image.size, image.mode
    except Image.DecompressionBombError:
        size, mode = (PICTURE_PIXELS, 2), "L"
    except Exception as error:
        raise UserError(f"{path}: unreadable image {entry.name!r}") from error
    if size[0] * size[1] > PICTURE_PIXELS:
        raise UserError(f"{path}: image {entry.name!r} refused: more than {PICTURE_PIXELS} pixels")
    return size, mode


def _decode(path: Path, entry: archive.Entry, size: tuple[int, int], mode: str) -> np.ndarray:
    """c×h×w, uint8."""
    try:
        with Image.open(io.BytesIO(entry.data), formats=FORMATS) as image:
            picture = in_eight_bits(image, mode)
    except Exception as error:
        raise UserError(f"{path}: unreadable image {entry.name!r} ({error})") from error
    if picture.size != size:
        picture = picture.resize(size, Image.Resampling.BILINEAR)
    pixels = np.asarray(picture)
    return pixels[None] if mode == "L" else pixels.transpose(2, 0, 1)
