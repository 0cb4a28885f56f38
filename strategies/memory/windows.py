"""The last few numbers of every client that was seen, in a pipeline's memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from thistle.strategies.memory.per_client import Memory


@dataclass(frozen=True)
class Windows:
    """Ids in ascending order, and for each a row of `size` numbers, the newest first; NaN: there was none."""

    name: str
    size: int

    def after(self, memory: Memory, clients: Sequence[int] | np.ndarray, values: np.ndarray) -> dict[str, np.ndarray]:
        """What to write into the memory once these clients have one more number each."""
        known, rows = self.ids(memory), self._rows(memory)
        changed = np.asarray(clients, np.uint64)
        ids = np.union1d(known, changed)
        after = np.full((len(ids), self.size), np.nan)
        after[np.searchsorted(ids, known)] = rows
        place = np.searchsorted(ids, changed)
        after[place, 1:] = after[place, :-1]
        after[place, 0] = values
        return {f"{self.name}.ids": ids, self.name: after}

    def empty(self) -> dict[str, np.ndarray]:
        """What to write into the memory to forget all numbers."""
        return {f"{self.name}.ids": np.empty(0, np.uint64), self.name: np.empty((0, self.size))}

    def ids(self, memory: Memory) -> np.ndarray:
        """Who has numbers."""
        return memory.get(f"{self.name}.ids", np.empty(0, np.uint64))

    def means(self, memory: Memory) -> np.ndarray:
        """The mean of each one's last numbers."""
        rows = self._rows(memory)
        return np.nanmean(rows, axis=1) if len(rows) else np.empty(0)

    def _rows(self, memory: Memory) -> np.ndarray:
        return memory.get(self.name, np.empty((0, self.size)))
