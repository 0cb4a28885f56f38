"""Each client's rank: the part of a layer's full rank to which its update is cut, following the client's progress."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from thistle.strategies.memory.per_client import Memory, PerClient

RANKS = PerClient("ranks", unseen=np.nan)
LEAST = 0.01
"""No client's rank falls to nothing; each layer keeps at least one singular value anyhow."""


@dataclass(frozen=True)
class Ranks:
    """DSVD-FL's dynamic truncation (eqs. 8-10). Fractions are kept in the memory for the clients that were seen."""

    start: float
    step: float = 0.0
    high: float = 0.75
    low: float = 0.25
    factors: bool = False
    """Whether clients send factors of that rank; otherwise the server cuts what they send."""

    def of(self, memory: Memory, clients: Sequence[int]) -> np.ndarray:
        """The fractions of these clients in this round."""
        found = RANKS.of(memory, clients)
        return np.where(np.isnan(found), self.start, found)

    def after(self, memory: Memory, clients: Sequence[int], gains: np.ndarray) -> dict[str, np.ndarray]:
        """What to remember once these clients have said by how much training lowered their loss.

        p_i above the round's `high` quantile: a step up; below its `low` quantile, or not a number: a step down.
        """
        heard = np.isfinite(gains)
        low, high = np.quantile(gains[heard], [self.low, self.high]) if heard.any() else (0.0, 0.0)
        with np.errstate(invalid="ignore"):
            direction = np.where(heard & (gains > high), 1.0, np.where(~heard | (gains < low), -1.0, 0.0))
        moved = np.round(self.of(memory, clients) + self.step * direction, 9)  # 0.5 and five steps of 0.05 are 0.75
        return RANKS.after(memory, clients, np.clip(moved, min(LEAST, self.start), 1.0))
