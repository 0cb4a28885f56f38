"""Where a task's data comes from: a name, `folder:PATH` or `npz:PATH` becomes a Dataset, decoded once and cached.

Everything here is independent of an experiment's seed: two experiments on one task see the same images
in the same order, split in the same way.
"""

from __future__ import annotations

import difflib
import io
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from exchange import settings
from exchange.errors import UserError
from exchange.randomness import seed_for
from tasks import archive, vision
from tasks.cache import Progress, Reader, Workspace, cached
from tasks.dataset import Dataset, Images

TASKS = {
    "digits": "scikit-learn's 8×8 digits, embedded: 1 500 to train, 297 to test",
    "mnist": "handwritten digits, 28×28",
    "fashion-mnist": "clothes, 28×28",
    "emnist": "EMNIST balanced: digits and letters, 28×28, 47 classes",
    "cifar10": "objects and animals in colour, 32×32",
    "cifar100": "the same with 100 classes",
    "svhn": "house numbers in colour, 32×32",
    "folder:PATH": "your images: train|test/<class>/<image> in a directory, .tar[.gz|.xz] or .zip",
    "npz:PATH": "your arrays: x_train, y_train, x_test, y_test[, classes]",
}
NAMES = ("digits", *vision.SETS)
PREFIXES = ("folder:", "npz:")
DIGITS_TEST = 297  # of 1 797
PICTURE_PIXELS = 4096 * 4096
NPZ_BYTES = 8 * 2**30
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
GRAY = ("1", "L", "LA", "La", "I", "F", "I;16", "I;16L", "I;16B", "I;16N")


def load_dataset(task: settings.Task, progress: Progress | None = None) -> Dataset:
    """The task's data: `read_source`, cut down to `task.train-size` training images, class by class."""
    identity, dataset = _read(task.name, task.data_dir, True, progress, "task.name")
    size, available = task.train_size, len(dataset.train)
    if size > available:
        raise UserError(f"task.train-size = {size}: {task.name} has only {available} training images; 0 means all")
    if size in (0, available):
        return dataset

    def read(work: Workspace) -> tuple[str, ...]:
        chosen = dataset.train.take(stratified(dataset.train.labels, size))
        work.put("train", chosen.pixels, chosen.labels)
        work.put("test", dataset.test.pixels, dataset.test.labels)
        return dataset.classes

    return cached(task.name, [identity, "train-size", size], read)


def read_source(
    name: str, data_dir: str = "", need_test: bool = True, progress: Progress | None = None, key: str = "task.name"
) -> Dataset:
    """The data called `name`, memory-mapped. Without `need_test` its test set may be empty.

    `key` is the setting that gave the name, for error messages.
    """
    return _read(name, data_dir, need_test, progress, key)[1]


def _read(name: str, data_dir: str, need_test: bool, progress: Progress | None, key: str) -> tuple[Any, Dataset]:
    """The data and what identifies it."""
    identity, read = _source(name, data_dir, key)
    dataset = cached(name, identity, read, progress)
    for split, images in (("training", dataset.train), ("test", dataset.test)):
        if len(images) == 0 and (split == "training" or need_test):
            raise UserError(f"{key} = {name!r}: there are no {split} images")
    return identity, dataset


def map_classes(dataset: Dataset, classes: tuple[str, ...], where: str) -> Dataset:
    """Relabel somebody's own data, by class name, to the federation's order. `where` names it in an error."""
    unknown = [name for name in dataset.classes if name not in classes]
    if unknown:
        raise UserError(f"{where}: class {unknown[0]!r} is not one of the federation's: {', '.join(classes)}")
    table = np.array([classes.index(name) for name in dataset.classes], dtype=np.int64)
    train, test = (Images(images.pixels, table[images.labels]) for images in (dataset.train, dataset.test))
    return replace(dataset, classes=classes, train=train, test=test)


def stratified(labels: np.ndarray, size: int) -> np.ndarray:
    """`size` indices in ascending order, every class by its share (largest remainders), always the same ones.

    The order within a class comes from PCG64's raw stream, which numpy promises never to change.
    """
    dice = np.random.PCG64(seed_for(0, "stratified")).random_raw(len(labels))
    kinds, counts = np.unique(labels, return_counts=True)
    shares = counts * size / len(labels)
    quota = np.floor(shares).astype(int)
    quota[np.argsort(quota - shares, kind="stable")[: size - quota.sum()]] += 1
    members = (np.flatnonzero(labels == kind) for kind in kinds)
    chosen = [which[np.argsort(dice[which], kind="stable")[:n]] for which, n in zip(members, quota, strict=True)]
    return np.sort(np.concatenate(chosen))


def _source(name: str, data_dir: str, key: str) -> tuple[Any, Reader]:
    """What identifies the source's content, and the function that decodes it."""
    kind, _, rest = name.partition(":")
    if name == "digits":
        return "digits", _read_digits
    if name in vision.SETS:
        root, files = vision.find_set(name, data_dir)
        stamps = [archive.fingerprint(file) for file in files]
        return [name, stamps], _checked(f"{name} in {root}", partial(vision.read_set, name, root, files))
    if rest and f"{kind}:" in PREFIXES:
        path = Path(rest).expanduser()
        read = _read_folder if kind == "folder" else _read_npz
        return [kind, archive.fingerprint(path)], _checked(str(path), partial(read, path))
    valid = [*NAMES, *(prefix + "PATH" for prefix in PREFIXES)]
    near = difflib.get_close_matches(name.lower(), valid, n=1, cutoff=0.0)[0]
    raise UserError(f"{key} = {name!r} is unknown; did you mean {near!r}? There are: {', '.join(valid)}")


def _checked(where: str, read: Any) -> Reader:
    """The reader, followed by what must hold for every source: a class for each label, a label for each image."""

    def checked(work: Workspace) -> tuple[str, ...]:
        classes: tuple[str, ...] = read(work=work)
        for split in ("train", "test"):
            labels = np.load(work.folder / f"{split}-labels.npy", mmap_mode="r")
            if len(labels) and not 0 <= labels.min() <= labels.max() < len(classes):
                raise UserError(f"{where}: {split} labels {labels.min()}..{labels.max()} for {len(classes)} classes")
        return classes

    return checked


def _read_digits(work: Workspace) -> tuple[str, ...]:
    """scikit-learn's 8×8 digits: no download, trained in seconds."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = np.rint(digits.images * (255 / 16)).astype(np.uint8)[:, None]
    test = np.zeros(len(pixels), dtype=bool)
    test[stratified(digits.target, DIGITS_TEST)] = True
    work.put("train", pixels[~test], digits.target[~test])
    work.put("test", pixels[test], digits.target[test])
    return tuple("0123456789")


# folder: ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Plan:
    """What a first look at all images (their headers) says about the arrays to be filled."""

    classes: tuple[str, ...]
    rows: Mapping[str, int]  # by member name, each split counted from 0
    counts: Mapping[str, int]
    size: tuple[int, int]  # width, height
    mode: str


def _read_folder(path: Path, work: Workspace) -> tuple[str, ...]:
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
            picture = image.convert(mode)
    except Exception as error:
        raise UserError(f"{path}: unreadable image {entry.name!r} ({error})") from error
    if picture.size != size:
        picture = picture.resize(size, Image.Resampling.BILINEAR)
    pixels = np.asarray(picture)
    return pixels[None] if mode == "L" else pixels.transpose(2, 0, 1)


# npz: ---------------------------------------------------------------------------------------------


def _read_npz(path: Path, work: Workspace) -> tuple[str, ...]:
    """Arrays x_train, y_train, optionally x_test and y_test, and classes (else "0", "1", …)."""
    arrays = _npz_arrays(path)
    if not {"x_test", "y_test"} & arrays.keys() and {"x_train", "y_train"} <= arrays.keys():
        arrays |= {"x_test": arrays["x_train"][:0], "y_test": arrays["y_train"][:0]}
    for name in ("x_train", "y_train", "x_test", "y_test"):
        if name not in arrays:
            raise UserError(f"{path}: array {name} is missing; expected x_train, y_train, x_test, y_test[, classes]")
    splits = {}
    for split in ("train", "test"):
        pixels = _npz_pixels(path, f"x_{split}", arrays[f"x_{split}"])
        splits[split] = Images(pixels, _npz_labels(path, f"y_{split}", arrays[f"y_{split}"], len(pixels)))
    if splits["train"].shape != splits["test"].shape:
        raise UserError(f"{path}: x_train and x_test hold images of different shapes")
    for split, images in splits.items():
        work.put(split, images.pixels, images.labels)
    return _npz_classes(path, arrays.get("classes"), splits)


def _npz_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays by name; never unpickled, and not unpacked when they claim to be enormous."""
    try:
        with zipfile.ZipFile(path) as members:
            if sum(info.file_size for info in members.infolist()) > NPZ_BYTES:
                raise UserError(f"{path}: refused: more than {NPZ_BYTES} bytes when unpacked")
        with np.load(path, allow_pickle=False) as arrays:
            wanted = ("x_train", "y_train", "x_test", "y_test", "classes")
            return {name: arrays[name] for name in wanted if name in arrays}
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{path}: not a readable npz archive of plain arrays ({error})") from error


def _npz_pixels(path: Path, name: str, x: np.ndarray) -> np.ndarray:
    """n×c×h×w uint8 from n×h×w, n×h×w×c or n×c×h×w, uint8 or float in [0, 1]."""
    shape = x.shape
    if x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4 and shape[1] not in (1, 3) and shape[3] in (1, 3):
        x = x.transpose(0, 3, 1, 2)
    if x.ndim != 4 or x.shape[1] not in (1, 3) or 0 in x.shape[1:]:
        raise UserError(f"{path}: {name} has shape {shape}; expected n×h×w, n×h×w×c or n×c×h×w with 1 or 3 channels c")
    if x.dtype == np.uint8:
        return x
    if x.dtype.kind != "f":
        raise UserError(f"{path}: {name} is {x.dtype}; expected uint8, or float in [0, 1]")
    if x.size and not (x.min() >= 0.0 and x.max() <= 1.0):  # false for NaN, too
        raise UserError(f"{path}: {name} has values outside [0, 1] ({x.min()}..{x.max()})")
    pixels: np.ndarray = np.rint(x * x.dtype.type(255)).astype(np.uint8)
    return pixels


def _npz_labels(path: Path, name: str, y: np.ndarray, count: int) -> np.ndarray:
    if y.dtype.kind not in "iu" or y.shape != (count,):
        raise UserError(f"{path}: {name} is {y.dtype} of shape {y.shape}; expected {count} integers")
    return y


def _npz_classes(path: Path, names: np.ndarray | None, splits: Mapping[str, Images]) -> tuple[str, ...]:
    if names is None:
        return tuple(map(str, range(1 + max(int(images.labels.max(initial=0)) for images in splits.values()))))
    if names.dtype.kind != "U" or names.ndim != 1 or len(set(names.tolist())) != len(names):
        raise UserError(f"{path}: classes is {names.dtype} of shape {names.shape}; expected strings, all different")
    return tuple(names.tolist())
