"""A number for every client that was seen, in a pipeline's memory: by client id, which may be any 64-bit number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

Memory = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class PerClient:
    """Kept as two arrays, the ids in ascending order and their values, so that a checkpoint can hold them."""

    name: str
    unseen: float
    """The number of a client that was never seen."""

    def of(self, memory: Memory, clients: Sequence[int] | np.ndarray) -> np.ndarray:
        """The numbers of these clients."""
        wanted, (ids, values) = np.asarray(clients, np.uint64), self._known(memory)
        if not len(ids):
            return np.full(len(wanted), self.unseen)
        place = np.searchsorted(ids, wanted).clip(max=len(ids) - 1)
        return np.where(ids[place] == wanted, values[place], self.unseen)

    def after(self, memory: Memory, clients: Sequence[int] | np.ndarray, values: np.ndarray) -> dict[str, np.ndarray]:
        """What to write into the memory once these clients have these numbers."""
        before, old = self._known(memory)
        changed = np.asarray(clients, np.uint64)
        ids = np.union1d(before, changed)
        after = np.full(len(ids), self.unseen)
        after[np.searchsorted(ids, before)] = old
        after[np.searchsorted(ids, changed)] = values
        return {self._ids: ids, self.name: after}

    def clients(self, memory: Memory) -> np.ndarray:
        """Those that were seen, in the order of their numbers in the memory."""
        return self._known(memory)[0]

    @property
    def _ids(self) -> str:
        return f"{self.name}.ids"

    def _known(self, memory: Memory) -> tuple[np.ndarray, np.ndarray]:
        return memory.get(self._ids, np.empty(0, np.uint64)), memory.get(self.name, np.empty(0))
