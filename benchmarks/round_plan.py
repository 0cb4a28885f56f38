"""The round that all contenders of round.py compute, and the protocol of those that are asked over pipes.

Needs numpy alone: the peers' venv imports it, too.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

CLIENTS, PER_ROUND, IMAGES = 1000, 20, 50
EPOCHS, BATCH, RATE = 2, 25, 0.1
WORKERS = 2
CLASSES, SHAPE = 10, (3, 32, 32)
ARRAYS = ("pixels", "labels", "shares")


def load_arrays(folder: Path) -> tuple[np.ndarray, ...]:
    """All images (uint8), all labels, and which of them each client holds; mapped, not read."""
    return tuple(np.load(folder / f"{name}.npy", mmap_mode="r") for name in ARRAYS)


def save_arrays(folder: Path, **arrays: np.ndarray) -> None:
    for name in ARRAYS:
        np.save(folder / f"{name}.npy", arrays[name])


class Gate:
    """The child's side: says when a round is done, and waits for the word to begin the next one."""

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # whatever a library prints goes to stderr

    def done(self) -> None:
        print(json.dumps({"done": True}), file=self._answers, flush=True)

    def opens(self) -> bool:
        """Blocks; false when nobody is there any more."""
        return bool(sys.stdin.readline())

    def serve(self, one_round: Callable[[], None]) -> None:
        self.done()
        while self.opens():
            one_round()
            self.done()
