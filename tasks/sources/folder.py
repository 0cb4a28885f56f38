"""`folder:PATH`: images as files, in a directory or an archive, one folder per class."""

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
from thistle.tasks.sources.depth import DEEPER, SIXTEEN, in_eight_bits, in_sixteen_bits, is_deep
from thistle.tasks.sources.registry import SOURCES, Found, Wanted

PICTURE_PIXELS = 4096 * 4096
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
DEEP = "I;16"
"""The mode of sets of grey images of which any has more than eight bits."""
GRAY = ("1", "L", "LA", "La", *SIXTEEN, *DEEPER)


@dataclass(frozen=True)
class _Plan:
    """What a first look at all images (their headers) says about the arrays to be filled."""

    classes: tuple[str, ...]
    rows: Mapping[str, int]  # by member name, each split counted from 0
    counts: Mapping[str, int]
    size: tuple[int, int]  # width, height
    mode: str
    bits: int  # of deep pictures


@SOURCES.add("folder:PATH", "your images: train|test/<class>/<image> in a directory, .tar[.gz|.xz] or .zip")
def folder(wanted: Wanted) -> Found:
    """The images below this path."""
    path, bits = wanted.path, wanted.options.bits
    return Found(["folder", archive.fingerprint(path), bits], partial(read_folder, path, bits), str(path))


def read_folder(path: Path, bits: int, work: Workspace) -> tuple[str, ...]:
    """Images in folders, one per class. The first training image sets the size, others are resized.

    All are gray if all were stored gray; one in colour makes them all RGB. One of more than 8 bits makes gray ones 16.
    """
    plan = _survey(path, bits)
    (width, height), channels = plan.size, 3 if plan.mode == "RGB" else 1
    dtype = np.uint16 if plan.mode == DEEP else np.uint8
    arrays = {split: work.arrays(split, (n, channels, height, width), dtype) for split, n in plan.counts.items()}
    done, total = 0, len(plan.rows)
    for done, entry in enumerate(archive.entries(path), start=1):
        row = plan.rows.get(entry.name)
        if row is None:
            break
        arrays[entry.split].pixels[row] = _decode(path, entry, plan)
        arrays[entry.split].labels[row] = plan.classes.index(entry.label)
        if work.progress and (done % 500 == 0 or done == total):
            work.progress(done, total)
    if done != total:
        raise UserError(f"{path}: changed while it was read")
    return plan.classes


def _survey(path: Path, bits: int) -> _Plan:
    """Look at every image's header, so that a bad one is found before anything is written."""
    names: dict[str, list[tuple[str, str]]] = {"train": [], "test": []}
    sizes: dict[str, tuple[int, int]] = {}
    gray, deep = True, False
    for entry in archive.entries(path):
        sizes[entry.name], mode, form = _header(path, entry)
        names[entry.split].append((entry.label, entry.name))
        gray, deep = gray and mode in GRAY, deep or is_deep(mode, form)
    if not rows_of(names):
        raise UserError(f"{path}: no images; expected train/<class>/<image>")
    for found in names.values():
        found.sort(key=lambda item: archive.order(*item))
    rows = {name: row for found in names.values() for row, (_, name) in enumerate(found)}
    classes = tuple(sorted({label for found in names.values() for label, _ in found}))
    counts = {split: len(found) for split, found in names.items()}
    mode = "RGB" if not gray else DEEP if deep else "L"
    return _Plan(classes, rows, counts, sizes[rows_of(names)[0]], mode, bits)


def rows_of(names: Mapping[str, list[tuple[str, str]]]) -> list[str]:
    """The members' names, the training images first."""
    return [name for split in ("train", "test") for _, name in names[split]]


def read_picture(path: Path, channels: int, bits: int = 16) -> np.ndarray:
    """One image file as it is, grey (1) or in colour (3): c×h×w, uint8 or uint16."""
    try:
        entry = archive.Entry("", "", path.name, path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    size, mode, form = _header(path.parent, entry)
    mode = "RGB" if channels != 1 else DEEP if is_deep(mode, form) else "L"
    return _decode(path.parent, entry, _Plan((), {}, {}, size, mode, bits))


def _header(path: Path, entry: archive.Entry) -> tuple[tuple[int, int], str, str | None]:
    """Size, mode and format, from the first bytes of the file; a picture too large to decode is refused."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # our own limit is lower
            with Image.open(io.BytesIO(entry.data), formats=FORMATS) as image:
                size, mode, form = image.size, image.mode, image.format
    except Image.DecompressionBombError:
        size, mode, form = (PICTURE_PIXELS, 2), "L", None
    except Exception as error:
        raise UserError(f"{path}: unreadable image {entry.name!r}") from error
    if size[0] * size[1] > PICTURE_PIXELS:
        raise UserError(f"{path}: image {entry.name!r} refused: more than {PICTURE_PIXELS} pixels")
    return size, mode, form


def _decode(path: Path, entry: archive.Entry, plan: _Plan) -> np.ndarray:
    """c×h×w, uint8 or, of deep sets, uint16."""
    deep = plan.mode == DEEP
    try:
        with Image.open(io.BytesIO(entry.data), formats=FORMATS) as image:
            if deep:
                values = in_sixteen_bits(image, plan.bits, f"{path}: image {entry.name!r}")
                picture = Image.fromarray(values.astype(np.float32))
            else:
                picture = in_eight_bits(image, plan.mode, plan.bits)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{path}: unreadable image {entry.name!r} ({error})") from error
    if picture.size != plan.size:
        picture = picture.resize(plan.size, Image.Resampling.BILINEAR)
    pixels = np.rint(np.asarray(picture)).astype(np.uint16) if deep else np.asarray(picture)
    return pixels.transpose(2, 0, 1) if plan.mode == "RGB" else pixels[None]
