"""Images out of a folder or a NumPy file, without labels: what an edge-case backdoor is made of."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from thistle.experiments.errors import UserError
from thistle.tasks.dataset import Shape
from thistle.tasks.serverdata import fit_pixels
from thistle.tasks.sources import archive
from thistle.tasks.sources.folder import read_picture
from thistle.tasks.sources.npz import npz_arrays, to_pixels

KEY = "attack.images"
HELD = 5
"""One image in this many is kept to measure success."""
MOST = 10_000
Pictures = tuple[list[np.ndarray], list[np.ndarray]]
"""c×h×w each: those to train on, and those to measure with, if these are known already."""
NOTHING = np.empty((0, 1, 1, 1), dtype=np.uint8)


@dataclass(frozen=True, eq=False)
class EdgeImages:
    """n×c×h×w, in [0, 1]."""

    taught: Tensor
    """What attackers train on."""
    held: Tensor
    """What success is measured on."""


def check_path(path: str) -> None:
    """Refuse what is neither a folder nor an npz file, before anything is read."""
    if not path:
        raise UserError(f"{KEY}: not set; name a folder of images, or an .npz file with the array x_train")
    place = Path(path)
    if not (place.is_dir() or (place.is_file() and place.suffix == ".npz")):
        raise UserError(f"{KEY} = {path}: no such folder or .npz file")
    count = len(_files(place)) if place.is_dir() else HELD
    if not HELD <= count <= MOST:
        raise UserError(f"{KEY} = {path}: has {count} files; expected {HELD} to {MOST} images, not in subfolders")


@lru_cache(maxsize=2)
def load_images(path: str, shape: Shape) -> EdgeImages:
    """In the task's size and channels. Every fifth is held out, unless the npz file says by x_test which ones are."""
    check_path(path)
    place = Path(path)
    try:
        taught, held = _pictures(place, shape[0]) if place.is_dir() else _arrays(place)
    except UserError as error:
        raise UserError(f"{KEY}: {error}") from None
    if not held:
        taught, held = _split(path, taught)
    return EdgeImages(_tensor(taught, shape), _tensor(held, shape))


def _pictures(folder: Path, channels: int) -> Pictures:
    return [read_picture(file, channels) for file in _files(folder)], []


def _arrays(path: Path) -> Pictures:
    arrays = npz_arrays(path)
    if "x_train" not in arrays:
        raise UserError(f"{path}: array x_train is missing")
    taught, held = (list(to_pixels(str(path), name, arrays.get(name, NOTHING))) for name in ("x_train", "x_test"))
    return taught, held


def _files(folder: Path) -> list[Path]:
    found = [file for file in folder.iterdir() if file.is_file() and not file.name.startswith(".")]
    return sorted(found, key=lambda file: archive.order("", file.name))


def _split(path: str, pictures: list[np.ndarray]) -> Pictures:
    if len(pictures) < HELD:
        raise UserError(f"{KEY} = {path}: has {len(pictures)} images; at least {HELD} are needed")
    kept = range(HELD - 1, len(pictures), HELD)
    return [one for number, one in enumerate(pictures) if number not in kept], [pictures[number] for number in kept]


def _tensor(pictures: list[np.ndarray], shape: Shape) -> Tensor:
    return torch.from_numpy(np.stack([fit_pixels(picture, shape) for picture in pictures])).float().div_(255)
