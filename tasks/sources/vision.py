"""torchvision, imported nowhere else: its operators made whole first, and how the image sets it knows are read.

Its compiled part may fail to load (a CPU-only torch beside a wheel linked to CUDA). Then the import
itself fails, because Python code attaches to operators that nobody declared.
"""

from __future__ import annotations

import contextlib
import gzip
import importlib
import importlib.util
import io
import shutil
import socket
import sys
import tarfile
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from thistle.experiments.errors import UserError
from thistle.experiments.extras import require
from thistle.tasks.sources import archive
from thistle.tasks.sources.cache import Workspace, cache_dir, locked, writing
from thistle.tasks.sources.registry import Found, Wanted

SECONDS_TO_ANSWER = 5.0  # until the network counts as absent
SECONDS_OF_SILENCE = 30.0  # until a download counts as broken
UNPACKED_BYTES = 2**30  # no idx file comes near

_importing = threading.Lock()
_declared: list[Any] = []  # torch forgets a Library's operators when it is collected


def torchvision() -> ModuleType:
    """The torchvision module, imported on first use."""
    with _importing:
        require("torchvision")
        if "torchvision" not in sys.modules:
            _declare_missing_operators()
        return importlib.import_module("torchvision")


def _declare_missing_operators() -> None:
    """Declare (not implement) the operators that the import attaches to, unless torchvision's own are there."""
    torch: Any = importlib.import_module("torch")
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None or _own_operators_load(Path(spec.origin).parent):
        return
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _declared.append(library)


def _own_operators_load(package: Path) -> bool:
    torch: Any = importlib.import_module("torch")
    for compiled in sorted([*package.glob("_C*.so"), *package.glob("_C*.pyd")]):
        with contextlib.suppress(OSError):
            torch.ops.load_library(str(compiled))
            return True
    return False


@dataclass(frozen=True)
class ImageSet:
    """A source: one of torchvision's sets, by its class there and its files below the data folder.

    A file may also be there gzipped, and all of them in the `archive` in which they are published.
    """

    kind: str
    files: tuple[str, ...]
    archive: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    """What the class wants to be told besides."""
    by_split: bool = False
    """Whether the class is told split="train" (and has `labels`), not train=True (and `targets`)."""
    channels_first: bool = False
    """Whether its images are c×h×w already."""
    on_its_side: bool = False
    """Whether its images are stored with rows and columns exchanged."""

    def __call__(self, wanted: Wanted) -> Found:
        root, files = find_set(wanted.name, self, wanted.data_dir)
        stamps = [archive.fingerprint(file) for file in files]
        read = partial(read_set, wanted.name, self, root, files)
        return Found([wanted.name, stamps], read, f"{wanted.name} in {root}")


def find_set(name: str, known: ImageSet, data_dir: str) -> tuple[Path, tuple[Path, ...]]:
    """The folder and the files of a set: in `data_dir`, else in the cache, else downloaded into the cache."""
    cache = cache_dir()
    roots = [Path(data_dir).expanduser(), cache] if data_dir else [cache]
    if not roots[0].is_dir() and data_dir:
        raise UserError(f"task.data-dir = {data_dir!r}: no such folder")
    for root in roots:
        if files := _present(known, root):
            return root, files
    with writing(), locked(cache / f"download-{name}.lock"):
        if not _present(known, cache):
            _download(name, known, cache, roots[0])
    return cache, _present(known, cache)


def read_set(name: str, known: ImageSet, root: Path, files: tuple[Path, ...], work: Workspace) -> tuple[str, ...]:
    """Let torchvision read the set; store both splits, return the class names."""
    with _unreadable(name, root):
        if any(file.suffix == ".gz" for file in files):
            root = _unpack(root, files, work.scratch())
        splits = {split: _open_set(known, root, split, download=False) for split in ("train", "test")}
    for split, data in splits.items():
        labels = np.asarray(data.labels if known.by_split else data.targets)
        if len(labels) != len(data.data):
            raise UserError(f"{name}: {len(data.data)} {split} images in {root}, but {len(labels)} labels")
        work.put(split, _pixels(known, data.data), labels)
    names = getattr(splits["train"], "classes", map(str, range(10)))
    return tuple(name.partition(" - ")[0] for name in names)  # MNIST calls its classes "0 - zero"


def _present(known: ImageSet, root: Path) -> tuple[Path, ...]:
    """The files that hold this set below `root`, () when some are missing."""
    wanted = [root / file for file in known.files]
    files = tuple(file if file.is_file() else file.with_name(file.name + ".gz") for file in wanted)
    if all(file.is_file() for file in files):
        return files
    return (root / known.archive,) if known.archive and (root / known.archive).is_file() else ()


def _unpack(root: Path, files: tuple[Path, ...], scratch: Path) -> Path:
    """The files as torchvision wants them, in a folder of our own: the source may be read-only."""
    for file in files:
        if file.name.endswith(".tar.gz"):
            with tarfile.open(file) as archive:
                archive.extractall(scratch, filter="data")
            continue
        target = scratch / file.relative_to(root).with_name(file.name.removesuffix(".gz"))
        target.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as packed, target.open("wb") as plain:
            shutil.copyfileobj(io.BytesIO(packed.read(UNPACKED_BYTES)), plain)
    return scratch


def _open_set(known: ImageSet, root: Path, split: str, download: bool) -> Any:
    kind = getattr(torchvision().datasets, known.kind)
    part: dict[str, Any] = {"split": split} if known.by_split else {"train": split == "train"}
    return kind(root, download=download, **part, **known.options)


def _pixels(known: ImageSet, data: Any) -> np.ndarray:
    """n×c×h×w, upright, whatever the set's own order."""
    pixels = np.asarray(data)
    if known.channels_first:
        return pixels
    if known.on_its_side:
        pixels = pixels.transpose(0, 2, 1)
    return pixels[:, None] if pixels.ndim == 3 else pixels.transpose(0, 3, 1, 2)


@contextlib.contextmanager
def _unreadable(name: str, root: Path) -> Iterator[None]:
    """torchvision and its parsers raise all sorts of things at damaged files."""
    try:
        yield
    except Exception as error:
        raise UserError(f"{name}: damaged or altered files in {root} ({error or type(error).__name__})") from error


def _download(name: str, known: ImageSet, cache: Path, asked: Path) -> None:
    """Let torchvision fetch the set, quietly, if its server answers; else say which files go where."""
    silence = socket.getdefaulttimeout()
    try:
        if not _answers(_address(getattr(torchvision().datasets, known.kind))):
            raise ConnectionError("no network")
        socket.setdefaulttimeout(SECONDS_OF_SILENCE)
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            for split in ("train", "test"):
                _open_set(known, cache, split, download=True)
    except Exception as error:
        files = known.archive or ", ".join(known.files)
        raise UserError(
            f"{name}: not found in {asked} and it could not be downloaded ({error});"
            f" put {files} there or set task.data-dir"
        ) from error
    finally:
        socket.setdefaulttimeout(silence)


def _address(kind: Any) -> str:
    """Where torchvision downloads from; each of its classes keeps that elsewhere."""
    mirrors: list[str] = getattr(kind, "mirrors", [])
    splits: dict[str, list[str]] = getattr(kind, "split_list", {"train": [""]})
    return str(getattr(kind, "url", "") or (mirrors[0] if mirrors else splits["train"][0]))


def _answers(address: str) -> bool:
    """Whether a server answers soon. In a thread, because looking up a name knows no time-out."""
    heard: list[bool] = []

    def ask() -> None:
        request = urllib.request.Request(address, method="HEAD")
        with contextlib.suppress(OSError, ValueError):
            with contextlib.suppress(urllib.error.HTTPError):  # a refusal is an answer, too
                urllib.request.urlopen(request, timeout=SECONDS_TO_ANSWER).close()
            heard.append(True)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(SECONDS_TO_ANSWER)
    return bool(heard)
