"""From the name of a source (`mnist`, `folder:PATH`, a function of the user's) to its data, decoded once and cached.

Everything here is independent of an experiment's seed: two experiments on one task see the same images
in the same order, split in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from thistle.experiments import settings
from thistle.experiments.errors import UserError
from thistle.experiments.plugins import is_own
from thistle.tasks.classes import match_classes
from thistle.tasks.dataset import Dataset
from thistle.tasks.sources.cache import Progress, Reader, Workspace, cached
from thistle.tasks.sources.own import own_source
from thistle.tasks.sources.registry import SOURCES, Found, Wanted, source_of
from thistle.tasks.stratified import stratified_always


def load_dataset(task: settings.Task, progress: Progress | None = None, scheme: str = "") -> Dataset:
    """The task's data: `read_source`, cut down to `task.train-size` training images, class by class.

    Without a training set it is a test set alone, for a server whose nodes have data of their own.
    """
    ask = _Asked(Wanted(task.name, task.data_dir, task, scheme), "task.name", needed=("test",))
    identity, dataset = ask.read(progress)
    size, available = task.train_size, len(dataset.train)
    if size > available:
        raise UserError(f"task.train-size = {size}: {task.name} has only {available} training images; 0 means all")
    if size in (0, available):
        return dataset

    def read(work: Workspace) -> tuple[str, ...]:
        chosen = dataset.train.take(stratified_always(dataset.train.labels, size))
        work.describe(dataset.train.bounds, dataset.scheme)
        work.put("train", chosen.pixels, chosen.labels)
        work.put("test", dataset.test.pixels, dataset.test.labels)
        return dataset.classes

    return cached(task.name, [identity, "train-size", size], read)


def read_source(
    name: str,
    data_dir: str = "",
    need_test: bool = True,
    progress: Progress | None = None,
    key: str = "task.name",
    *,
    need_train: bool = True,
    options: settings.Task | None = None,
    scheme: str = "",
) -> Dataset:
    """The data called `name`, memory-mapped. Without `need_test` its test set may be empty, and so on.

    `key` is the setting that gave the name, for error messages. `options` say how to read the user's own files;
    `scheme` how rows of a table become values, where others have agreed on that.
    """
    needed = ("train",) * need_train + ("test",) * need_test
    return _Asked(Wanted(name, data_dir, options or settings.Task(), scheme), key, needed).read(progress)[1]


def map_classes(dataset: Dataset, classes: tuple[str, ...], where: str) -> Dataset:
    """Relabel somebody's own data, by class name, to the federation's order. `where` names it in an error."""
    table = match_classes(dataset.classes, classes, where)
    train, test = (replace(images, labels=table[images.labels]) for images in (dataset.train, dataset.test))
    return replace(dataset, classes=classes, train=train, test=test)


@dataclass(frozen=True)
class _Asked:
    """What is asked for, by which setting, and which of its sets may not be empty."""

    wanted: Wanted
    key: str
    needed: tuple[str, ...]

    def read(self, progress: Progress | None) -> tuple[Any, Dataset]:
        """The data and what identifies it."""
        name, found = self.wanted.name, self._find()
        dataset = cached(name, found.identity, _checked(found), progress)
        for split, word, images in (("train", "training", dataset.train), ("test", "test", dataset.test)):
            if len(images) == 0 and split in self.needed:
                raise UserError(f"{self.key} = {name!r}: there are no {word} images")
        if not len(dataset.train) and not len(dataset.test):
            raise UserError(f"{self.key} = {name!r}: is empty")
        return found.identity, dataset

    def _find(self) -> Found:
        """The source's data, not decoded yet."""
        name = self.wanted.name
        source = source_of(name)
        if source is not None:
            return source(self.wanted)
        if self.key == "task.name" and is_own(name):
            return own_source(name, self.key, self.wanted.options.bits)
        near, valid = SOURCES.nearest(name), ", ".join(SOURCES)
        raise UserError(f"{self.key} = {name!r} is unknown; did you mean {near!r}? There are: {valid}")


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
