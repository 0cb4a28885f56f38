"""Checkpoints: the last two, each complete or not there at all, with a sum that tells a broken one.

checkpoint/round-000020/state.json       round, plain values, sha256 of the tensors
                        tensors.safetensors
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load, save

logger = logging.getLogger("thistle")

KEPT = 2


@dataclass(frozen=True)
class Checkpoint:
    """What a run needs to go on exactly as if it had never stopped, after round `round`."""

    round: int
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    plain: Mapping[str, Any] = field(default_factory=dict)


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Write a new file, then rename it: a process killed in between leaves the previous one intact."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = save(
        {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in checkpoint.arrays.items()}
    )
    state = {"round": checkpoint.round, "sha256": hashlib.sha256(tensors).hexdigest(), "plain": checkpoint.plain}
    temporary = folder / f".writing-{os.getpid()}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    _write(temporary / "tensors.safetensors", tensors)
    _write(temporary / "state.json", json.dumps(state).encode())
    target = folder / f"round-{checkpoint.round:06d}"
    shutil.rmtree(target, ignore_errors=True)
    temporary.rename(target)
    _sync(folder)
    for old in _all(folder)[:-KEPT]:
        shutil.rmtree(old)


def load_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest complete one; None if there is none."""
    for path in reversed(_all(folder)):
        try:
            state = json.loads((path / "state.json").read_bytes())
            tensors = (path / "tensors.safetensors").read_bytes()
            if hashlib.sha256(tensors).hexdigest() != state["sha256"]:
                raise ValueError("its sum does not match")
            return Checkpoint(state["round"], load(tensors), state["plain"])
        except (OSError, ValueError, KeyError) as error:
            logger.warning("checkpoint %s is broken and was skipped: %s", path.name, error)
    return None


def _all(folder: Path) -> list[Path]:
    return sorted(folder.glob("round-*"))


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
