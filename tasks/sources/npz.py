"""Arrays in one NumPy file, images or any other values: `npz:PATH`."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from thistle.experiments.errors import UserError
from thistle.tasks.dataset import ANY, PIXELS, Images
from thistle.tasks.sources import archive
from thistle.tasks.sources.cache import Workspace
from thistle.tasks.sources.depth import widened
from thistle.tasks.sources.registry import SOURCES, Found, Wanted

EXACT = 1e-3
"""Of a level: so far may a float be from one that came from eight bits."""
NPZ_BYTES = 8 * 2**30
WANTED = ("x_train", "y_train", "x_test", "y_test", "classes", "kind")
KINDS = ("images", "values")
LEVELS = (np.uint8, np.uint16)
REGRESSION = "regression is not supported: labels are integers or texts, one for each class"


@SOURCES.add("npz:PATH", "your arrays: x_train, y_train, x_test, y_test[, classes]; images, series or any values")
def npz(wanted: Wanted) -> Found:
    """The arrays in this file."""
    path, bits = wanted.path, wanted.options.bits
    return Found(["npz, in full depth", archive.fingerprint(path), bits], partial(read_npz, path, bits), str(path))


def read_npz(path: Path, bits: int, work: Workspace) -> tuple[str, ...]:
    """Either or both of x_train with y_train and x_test with y_test, and classes (else the labels, in order)."""
    return put_arrays(str(path), npz_arrays(path), work, bits)


def put_arrays(where: str, arrays: dict[str, np.ndarray], work: Workspace, bits: int = 16) -> tuple[str, ...]:
    """Check the arrays, store both splits, return the classes' names. `where` says whose they are in an error."""
    for there, absent in (("train", "test"), ("test", "train")):
        if not {f"x_{absent}", f"y_{absent}"} & arrays.keys() and {f"x_{there}", f"y_{there}"} <= arrays.keys():
            arrays |= {f"{name}_{absent}": arrays[f"{name}_{there}"][:0] for name in "xy"}
    for name in ("x_train", "y_train", "x_test", "y_test"):
        if name not in arrays:
            raise UserError(f"{where}: array {name} is missing; expected x_train, y_train, x_test, y_test[, classes]")
    images = _are_images(where, arrays)
    read = to_pixels if images else to_values
    classes, labels = _labels(where, arrays)
    splits = {}
    for split in ("train", "test"):
        inputs = read(where, f"x_{split}", arrays[f"x_{split}"], bits)
        if len(inputs) != len(labels[split]):
            raise UserError(f"{where}: x_{split} has {len(inputs)} rows, y_{split} has {len(labels[split])} labels")
        splits[split] = Images(inputs, labels[split])
    if splits["train"].shape != splits["test"].shape:
        raise UserError(f"{where}: x_train and x_test hold {'images' if images else 'values'} of different shapes")
    levels = all(part.pixels.dtype in LEVELS for part in splits.values())
    work.describe(PIXELS if images or levels else ANY)
    for split, part in splits.items():
        work.put(split, part.pixels, part.labels)
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


# -- images or other values


def _are_images(where: str, arrays: Mapping[str, np.ndarray]) -> bool:
    """As the array `kind` says; otherwise arrays whose shape and values may be images count as images."""
    if "kind" not in arrays:
        return all(_like_images(arrays[f"x_{split}"]) for split in ("train", "test"))
    kind = str(arrays["kind"])
    if kind not in KINDS:
        raise UserError(f"{where}: kind = {kind!r}: should be {' or '.join(KINDS)}")
    return kind == KINDS[0]


def _like_images(x: np.ndarray) -> bool:
    """Levels always; numbers of the right shape if they are in [0, 1], or look like levels that were not scaled."""
    if x.dtype in LEVELS or x.dtype.kind not in "iuf":
        return True
    shaped = x.ndim == 3 or (x.ndim == 4 and {x.shape[1], x.shape[3]} & {1, 3})
    if not shaped or not x.size:
        return bool(shaped) or not x.size
    low, high = float(x.min()), float(x.max())
    return low >= 0 and (high <= 1 or (high <= 255 and bool((x == np.rint(x)).all())))


def to_values(where: str, name: str, x: np.ndarray, bits: int = 16) -> np.ndarray:
    """Any numbers, n×…: levels (unsigned, 8 or 16 bits) as they are, which the model sees in [0, 1]; else float32."""
    if x.ndim < 2 or 0 in x.shape[1:] or x.dtype.kind not in "iuf":
        raise UserError(f"{where}: {name} is {x.dtype} of shape {x.shape}; expected numbers, n×…")
    if x.dtype == np.uint16:
        return widened(x, bits, f"{where}: {name}")
    if x.dtype == np.uint8:
        return x
    with np.errstate(over="ignore"):
        values: np.ndarray = x.astype(np.float32)
    if not np.isfinite(values).all():
        raise UserError(f"{where}: {name} has values that are not finite; fill in what is missing, or leave it out")
    return values


def to_pixels(where: str, name: str, x: np.ndarray, bits: int = 16) -> np.ndarray:
    """n×c×h×w from n×h×w, n×h×w×c or n×c×h×w: levels of 8 or 16 bits, or floats in [0, 1], which stay floats unless
    they came from 8 bits."""
    shape = x.shape
    if x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4 and shape[1] not in (1, 3) and shape[3] in (1, 3):
        x = x.transpose(0, 3, 1, 2)
    if x.ndim != 4 or x.shape[1] not in (1, 3) or 0 in x.shape[1:]:
        raise UserError(
            f"{where}: {name} has shape {shape}; images are n×h×w, n×h×w×c or n×c×h×w with 1 or 3 channels c; "
            "for anything else add an array kind = 'values'"
        )
    if x.dtype == np.uint8:
        return x
    if x.dtype == np.uint16:
        return widened(x, bits, f"{where}: {name}")
    if x.dtype.kind != "f":
        raise UserError(f"{where}: {name} is {x.dtype}; images are uint8, uint16, or float in [0, 1]; {ELSE}")
    if x.size and not (x.min() >= 0.0 and x.max() <= 1.0):  # false for NaN, too
        raise UserError(
            f"{where}: {name} has values outside [0, 1] ({x.min():g}..{x.max():g}): divide images by their largest "
            f"value; {ELSE}"
        )
    levels = x * x.dtype.type(255)
    whole = np.rint(levels)
    if np.abs(levels - whole).max(initial=0) > EXACT:
        return x.astype(np.float32)
    pixels: np.ndarray = whole.astype(np.uint8)
    return pixels


ELSE = "anything but images needs an array kind = 'values'"


# -- labels


def _labels(where: str, arrays: Mapping[str, np.ndarray]) -> tuple[tuple[str, ...], dict[str, np.ndarray]]:
    """The classes' names, and each split's labels from 0 on."""
    found = {split: arrays[f"y_{split}"] for split in ("train", "test")}
    named = _class_names(where, arrays.get("classes"))
    for split, y in found.items():
        if y.dtype.kind not in "iuU" or y.ndim != 1:
            raise UserError(f"{where}: y_{split} is {y.dtype} of shape {y.shape}: {REGRESSION}")
    if any(y.dtype.kind == "U" for y in found.values()):
        return _texts(where, named, found)
    numbers = {split: y.astype(np.int64) for split, y in found.items()}
    if named is not None:
        return named, numbers
    every = np.concatenate(list(numbers.values()))
    lowest, highest = (int(every.min()), int(every.max())) if len(every) else (0, 0)
    lowest = max(lowest, 0)  # below it is nothing that a class could have: refused later
    classes = tuple(map(str, range(lowest, highest + 1)))
    return classes, {split: y - lowest for split, y in numbers.items()}


def _texts(
    where: str, named: tuple[str, ...] | None, found: Mapping[str, np.ndarray]
) -> tuple[tuple[str, ...], dict[str, np.ndarray]]:
    """Labels that are the classes' names."""
    texts = {split: [str(label) for label in y] for split, y in found.items()}
    classes = named or tuple(sorted(set().union(*texts.values())))
    return classes, {split: numbered(where, labels, classes) for split, labels in texts.items()}


def numbered(where: str, labels: Iterable[str], classes: tuple[str, ...]) -> np.ndarray:
    """Each label's number among the classes."""
    table = {name: number for number, name in enumerate(classes)}
    try:
        return np.array([table[label] for label in labels], dtype=np.int64)
    except KeyError as error:
        raise UserError(f"{where}: label {error} is not one of the classes {', '.join(classes)}") from None


def _class_names(where: str, names: np.ndarray | None) -> tuple[str, ...] | None:
    if names is None:
        return None
    if names.dtype.kind != "U" or names.ndim != 1 or len(set(names.tolist())) != len(names):
        raise UserError(f"{where}: classes is {names.dtype} of shape {names.shape}; expected strings, all different")
    return tuple(names.tolist())
