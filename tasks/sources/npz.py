"""Images as arrays, in one NumPy file: `npz:PATH`."""

from __future__ import annotations

import logging
import zipfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np

from thistle.experiments.errors import UserError
from thistle.tasks.dataset import Images
from thistle.tasks.sources import archive
from thistle.tasks.sources.cache import Workspace
from thistle.tasks.sources.registry import SOURCES, Found, Wanted

logger = logging.getLogger("thistle")
EXACT = 1e-3
"""Of a level: so far may a float be from one that came from eight bits."""
NPZ_BYTES = 8 * 2**30
WANTED = ("x_train", "y_train", "x_test", "y_test", "classes")


@SOURCES.add("npz:PATH", "your arrays: x_train, y_train, x_test, y_test[, classes]")
def npz(wanted: Wanted) -> Found:
    """The arrays in this file."""
    path = wanted.path
    return Found(["npz, from the lowest label", archive.fingerprint(path)], partial(read_npz, path), str(path))


def read_npz(path: Path, work: Workspace) -> tuple[str, ...]:
    """Arrays x_train, y_train, optionally x_test and y_test, and classes (else the labels, from the lowest on)."""
    return put_arrays(str(path), npz_arrays(path), work)


def put_arrays(where: str, arrays: dict[str, np.ndarray], work: Workspace) -> tuple[str, ...]:
    """Check the arrays, store both splits, return the classes' names. `where` says whose they are in an error."""
    if not {"x_test", "y_test"} & arrays.keys() and {"x_train", "y_train"} <= arrays.keys():
        arrays |= {"x_test": arrays["x_train"][:0], "y_test": arrays["y_train"][:0]}
    for name in ("x_train", "y_train", "x_test", "y_test"):
        if name not in arrays:
            raise UserError(f"{where}: array {name} is missing; expected x_train, y_train, x_test, y_test[, classes]")
    splits = {}
    for split in ("train", "test"):
        pixels = to_pixels(where, f"x_{split}", arrays[f"x_{split}"])
        splits[split] = Images(pixels, _labels(where, f"y_{split}", arrays[f"y_{split}"], len(pixels)))
    if splits["train"].shape != splits["test"].shape:
        raise UserError(f"{where}: x_train and x_test hold images of different shapes")
    lowest, classes = _classes(where, arrays.get("classes"), splits)
    for split, images in splits.items():
        work.put(split, images.pixels, images.labels.astype(np.int64) - lowest)
    return classes


def npz_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays by name; never unpickled, and not unpacked when they claim to be enormous."""
    try:
        with zipfile.ZipFile(path) as members:
            if sum(info.file_size for info in members.infolist()) > NPZ_BYTES:
                raise UserError(f"{path}: refused: more than {NPZ_BYTES} bytes when unpacked")
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in WANTED if name in arrays}
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{path}: not a readable npz archive of plain arrays ({error})") from error


def to_pixels(where: str, name: str, x: np.ndarray) -> np.ndarray:
    """n×c×h×w uint8 from n×h×w, n×h×w×c or n×c×h×w, uint8 or float in [0, 1]."""
    shape = x.shape
    if x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4 and shape[1] not in (1, 3) and shape[3] in (1, 3):
        x = x.transpose(0, 3, 1, 2)
    if x.ndim != 4 or x.shape[1] not in (1, 3) or 0 in x.shape[1:]:
        raise UserError(f"{where}: {name} has shape {shape}; expected n×h×w, n×h×w×c or n×c×h×w with 1 or 3 channels c")
    if x.dtype == np.uint8:
        return x
    if x.dtype.kind != "f":
        raise UserError(f"{where}: {name} is {x.dtype}; expected uint8, or float in [0, 1]")
    if x.size and not (x.min() >= 0.0 and x.max() <= 1.0):  # false for NaN, too
        raise UserError(f"{where}: {name} has values outside [0, 1] ({x.min()}..{x.max()})")
    levels = x * x.dtype.type(255)
    whole = np.rint(levels)
    if np.abs(levels - whole).max(initial=0) > EXACT:
        logger.warning("%s: %s is %s: its values are rounded to 8 bits, 256 levels from 0 to 1", where, name, x.dtype)
    pixels: np.ndarray = whole.astype(np.uint8)
    return pixels


def _labels(where: str, name: str, y: np.ndarray, count: int) -> np.ndarray:
    if y.dtype.kind not in "iu" or y.shape != (count,):
        raise UserError(f"{where}: {name} is {y.dtype} of shape {y.shape}; expected {count} integers")
    return y


def _classes(where: str, names: np.ndarray | None, splits: Mapping[str, Images]) -> tuple[int, tuple[str, ...]]:
    """The label of the first class, and the classes' names: without any, the numbers from the lowest label on."""
    if names is None:
        labels = np.concatenate([images.labels.astype(np.int64) for images in splits.values()])
        lowest, highest = (int(labels.min()), int(labels.max())) if len(labels) else (0, 0)
        lowest = max(lowest, 0)  # below it is nothing that a class could have: refused later
        return lowest, tuple(map(str, range(lowest, highest + 1)))
    if names.dtype.kind != "U" or names.ndim != 1 or len(set(names.tolist())) != len(names):
        raise UserError(f"{where}: classes is {names.dtype} of shape {names.shape}; expected strings, all different")
    return 0, tuple(names.tolist())
