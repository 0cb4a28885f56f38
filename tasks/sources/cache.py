"""Decoded data on disk: written once, then memory-mapped by every process that wants it.

    <cache>/<name>-<hash>/{train-pixels,train-labels,test-pixels,test-labels}.npy, meta.json

The hash covers the source's identity (paths, sizes, times), so a changed source gets an entry of its
own. An entry appears by one rename, under a lock: of ten processes one decodes and nine wait. What a
crash leaves behind is swept up by the next writer.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from thistle.experiments.errors import UserError
from thistle.tasks.dataset import ANY, PIXELS, Bounds, Dataset, Images, Shape

FORMAT = 3  # raise it whenever the same source would be decoded to other bytes
SPLITS = ("train", "test")
ARRAYS = tuple(f"{split}-{what}.npy" for split in SPLITS for what in ("pixels", "labels"))

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Workspace:
    """The folder in which one source is being decoded, not yet visible to others."""

    folder: Path
    progress: Progress | None = None
    about: dict[str, Any] = field(default_factory=dict)
    """What else to know about the data: `scheme`, and whether they are `bounded`."""

    def arrays(self, split: str, shape: Shape, dtype: Any = np.uint8) -> Images:
        """Inputs and labels to be filled in, already on disk. `shape`: with the number of inputs before it."""
        pixels = self._array(f"{split}-pixels.npy", shape, dtype)
        return Images(pixels, self._array(f"{split}-labels.npy", shape[:1], np.int64))

    def describe(self, bounds: Bounds, scheme: str = "") -> None:
        """Say what `Images.bounds` and `Dataset.scheme` will be; unsaid, they are those of images."""
        self.about.update(bounded=bounds == PIXELS, scheme=scheme)

    def put(self, split: str, pixels: np.ndarray, labels: np.ndarray) -> None:
        """Store a split that is in memory already."""
        images = self.arrays(split, pixels.shape, pixels.dtype)
        images.pixels[:] = pixels
        images.labels[:] = labels

    def scratch(self) -> Path:
        """A folder for unpacked files; gone before the entry appears."""
        folder = self.folder / "scratch"
        folder.mkdir(exist_ok=True)
        return folder

    def _array(self, name: str, shape: Shape, dtype: Any) -> np.ndarray:
        path = self.folder / name
        array: np.ndarray = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
        if array.size and hasattr(os, "posix_fallocate"):  # a full disk is an error here, but a crash in a mapped page
            with path.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
        return array


Reader = Callable[[Workspace], tuple[str, ...]]


def cache_dir() -> Path:
    """Where data is kept: THISTLE_CACHE, or thistle/data in the user's cache folder."""
    own = os.environ.get("THISTLE_CACHE")
    if own:
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "thistle" / "data"


def cached(name: str, identity: Any, read: Reader, progress: Progress | None = None) -> Dataset:
    """The decoded source called `name`: mapped, or first read into the cache.

    `identity` (anything JSON can hold) names the source's content; `read` stores both splits in the
    workspace and returns the class names.
    """
    digest = hashlib.sha256(json.dumps([FORMAT, identity]).encode()).hexdigest()
    entry = cache_dir() / f"{_slug(name)}-{digest[:20]}"
    dataset = _open(entry, name)
    if dataset is None:
        with writing(), locked(entry.with_name(entry.name + ".lock")):
            dataset = _open(entry, name)  # another process may have been quicker
            if dataset is None:
                _write(entry, read, progress)
                dataset = _open(entry, name)
    if dataset is None:
        raise UserError(f"{entry}: written, but could not be read back; is the disk failing?")
    return dataset


@contextmanager
def writing() -> Iterator[None]:
    """Turn failures to write into the cache into words."""
    try:
        yield
    except OSError as error:
        where = cache_dir()
        raise UserError(f"cache {where} cannot be written ({error}); set THISTLE_CACHE to a folder that can") from error


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file; wait for its holder. The system frees it when a process dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _slug(name: str) -> str:
    """A folder name that a person recognises: `folder:/data/My set.tar.xz` becomes `my-set`."""
    stem = Path(name.partition(":")[2] or name).name.split(".")[0]
    return re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[:40] or "data"


def _open(entry: Path, name: str) -> Dataset | None:
    """The entry, mapped; None when it is not there or not whole."""
    try:
        meta = json.loads((entry / "meta.json").read_text())
        if any((entry / file).stat().st_size != meta["sizes"][file] for file in ARRAYS):
            return None
        arrays = [np.load(entry / file, mmap_mode="r", allow_pickle=False) for file in ARRAYS]
        about = meta["about"]
        bounds = PIXELS if about.get("bounded", True) else ANY
        train, test = Images(arrays[0], arrays[1], bounds), Images(arrays[2], arrays[3], bounds)
        return Dataset(name, tuple(meta["classes"]), train, test, about.get("scheme", ""))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(entry: Path, read: Reader, progress: Progress | None) -> None:
    """Decode into a sibling folder and rename it. The caller holds the entry's lock."""
    temporary = entry.with_name(entry.name + ".tmp")
    _sweep(entry.parent)
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        work = Workspace(temporary, progress)
        classes = read(work)
        shutil.rmtree(temporary / "scratch", ignore_errors=True)
        sizes = {file: _flushed_size(temporary / file) for file in ARRAYS}
        meta = {"format": FORMAT, "classes": classes, "sizes": sizes, "about": work.about}
        (temporary / "meta.json").write_text(json.dumps(meta))
        shutil.rmtree(entry, ignore_errors=True)  # not whole, or it would have been opened
        temporary.rename(entry)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _flushed_size(path: Path) -> int:
    """The file's size, once it is on disk: after a power cut the size alone must tell whether it is whole."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        return os.fstat(file.fileno()).st_size


def _sweep(folder: Path) -> None:
    """Remove what crashed writers of other entries left: temporary folders whose lock nobody holds."""
    for temporary in folder.glob("*.tmp"):
        with temporary.with_suffix(".lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue
            shutil.rmtree(temporary, ignore_errors=True)
