"""Where a task's data comes from: a name, `folder:PATH`, `npz:PATH` or a function of the user's becomes a Dataset,
decoded once and cached.

Everything here is independent of an experiment's seed: two experiments on one task see the same images
in the same order, split in the same way.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from thistle.experiments import settings
from thistle.experiments.errors import UserError
from thistle.experiments.extras import require
from thistle.experiments.plugins import content_of, is_own, make_own, wrong_result
from thistle.tasks import archive, vision
from thistle.tasks.cache import Progress, Reader, Workspace, cached
from thistle.tasks.classes import match_classes
from thistle.tasks.dataset import Dataset, Images
from thistle.tasks.folder import read_folder
from thistle.tasks.npz import WANTED, put_arrays, read_npz
from thistle.tasks.stratified import stratified_always

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
    "MODULE:FACTORY": "your function, which makes the same arrays",
}
NAMES = ("digits", *vision.SETS)
PREFIXES = ("folder:", "npz:")
DIGITS_TEST = 297  # of 1 797


def load_dataset(task: settings.Task, progress: Progress | None = None) -> Dataset:
    """The task's data: `read_source`, cut down to `task.train-size` training images, class by class."""
    identity, dataset = _read(task.name, task.data_dir, True, progress, "task.name")
    size, available = task.train_size, len(dataset.train)
    if size > available:
        raise UserError(f"task.train-size = {size}: {task.name} has only {available} training images; 0 means all")
    if size in (0, available):
        return dataset

    def read(work: Workspace) -> tuple[str, ...]:
        chosen = dataset.train.take(stratified_always(dataset.train.labels, size))
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
    table = match_classes(dataset.classes, classes, where)
    train, test = (Images(images.pixels, table[images.labels]) for images in (dataset.train, dataset.test))
    return replace(dataset, classes=classes, train=train, test=test)


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
        read = read_folder if kind == "folder" else read_npz
        return [kind, archive.fingerprint(path)], _checked(str(path), partial(read, path))
    if key == "task.name" and is_own(name):
        return ["own", content_of(name, key), name], _checked(name, partial(_read_own, name, key))
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


def _read_own(name: str, key: str, work: Workspace) -> tuple[str, ...]:
    """What the user's function makes: a mapping with the arrays of an npz file."""
    made = make_own(name, key)
    if not isinstance(made, Mapping):
        raise wrong_result(name, key, f"a mapping with {', '.join(WANTED)}", made)
    where = f"{key} = {name!r}"
    try:
        arrays = {array: np.asarray(made[array]) for array in WANTED if array in made}
    except Exception as error:
        raise UserError(f"{where}: not arrays: {error}") from None
    return put_arrays(where, arrays, work)


def _read_digits(work: Workspace) -> tuple[str, ...]:
    """scikit-learn's 8×8 digits: no download, trained in seconds."""
    require("sklearn")
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = np.rint(digits.images * (255 / 16)).astype(np.uint8)[:, None]
    test = np.zeros(len(pixels), dtype=bool)
    test[stratified_always(digits.target, DIGITS_TEST)] = True
    work.put("train", pixels[~test], digits.target[~test])
    work.put("test", pixels[test], digits.target[test])
    return tuple("0123456789")
