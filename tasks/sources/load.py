"""From the name of a source (`mnist`, `folder:PATH`, a function of the user's) to its data, decoded once and cached.

Everything here is independent of an experiment's seed: two experiments on one task see the same images
in the same order, split in the same way.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from thistle.experiments import settings
from thistle.experiments.errors import UserError
from thistle.experiments.plugins import is_own
from thistle.tasks.classes import match_classes
from thistle.tasks.dataset import Dataset, Images
from thistle.tasks.sources.cache import Progress, Reader, Workspace, cached
from thistle.tasks.sources.own import own_source
from thistle.tasks.sources.registry import SOURCES, Found, Wanted, source_of
from thistle.tasks.stratified import stratified_always


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
    found = _find(name, data_dir, key)
    dataset = cached(name, found.identity, _checked(found), progress)
    for split, images in (("training", dataset.train), ("test", dataset.test)):
        if len(images) == 0 and (split == "training" or need_test):
            raise UserError(f"{key} = {name!r}: there are no {split} images")
    return found.identity, dataset


def map_classes(dataset: Dataset, classes: tuple[str, ...], where: str) -> Dataset:
    """Relabel somebody's own data, by class name, to the federation's order. `where` names it in an error."""
    table = match_classes(dataset.classes, classes, where)
    train, test = (Images(images.pixels, table[images.labels]) for images in (dataset.train, dataset.test))
    return replace(dataset, classes=classes, train=train, test=test)


def _find(name: str, data_dir: str, key: str) -> Found:
    """The source's data, not decoded yet."""
    source = source_of(name)
    if source is not None:
        return source(Wanted(name, data_dir))
    if key == "task.name" and is_own(name):
        return own_source(name, key)
    near, valid = SOURCES.nearest(name), ", ".join(SOURCES)
    raise UserError(f"{key} = {name!r} is unknown; did you mean {near!r}? There are: {valid}")


def _checked(found: Found) -> Reader:
    """The reader, followed by what must hold for every source: a class for each label, a label for each image."""

    def checked(work: Workspace) -> tuple[str, ...]:
        classes = found.read(work)
        for split in ("train", "test"):
            labels = np.load(work.folder / f"{split}-labels.npy", mmap_mode="r")
            if len(labels) and not 0 <= labels.min() <= labels.max() < len(classes):
                raise UserError(
                    f"{found.where}: {split} labels {labels.min()}..{labels.max()} for {len(classes)} classes"
                )
        return classes

    return checked
