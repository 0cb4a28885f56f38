"""Who is malicious, judged by scores alone, without being told how many there are (θ = "auto").

Three observations make it work (docs/results.md has the figures):
- whether anybody attacks shows in the shape of a round's scores: attackers split them in two, honest clients do not;
- one round's scores cannot tell a mild attacker from an odd honest client, a client's scores over many rounds can;
- the better half of a round is the yardstick: even a majority of attackers does not score well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from thistle.strategies.memory.per_client import PerClient
from thistle.strategies.rounds import Progress, Round

MOST = 0.8
"""At most this share of a round is dropped."""
SPLIT = "share.split"
EVIDENCE = PerClient("share.evidence", unseen=np.nan)
"""Every client's smoothed relative score."""


@dataclass(frozen=True)
class MaliciousShare:
    """Drops the clients whose scores have stayed far below the better ones, if the scores speak of an attack."""

    attacked: float = 0.79
    """Above this part of variance explained by a split in two (smoothed), somebody attacks."""
    below: float = 1.2
    """This many spreads below the upper quartile is too low, while somebody attacks …"""
    far_below: float = 6.0
    """… and this many at any time."""
    split_memory: float = 0.9
    evidence_memory: float = 0.7
    suspicion: float = 0.85
    """What the split is taken to be before the first round: better safe."""

    def judge(self, round: Round, progress: Progress, scores: Tensor) -> tuple[Tensor, Callable[[int], str], Progress]:
        """n booleans: which clients to drop; and why, by row."""
        z = torch.sign(scores) * scores.abs().sqrt()
        past = float(round.memory[SPLIT][0]) if SPLIT in round.memory else self.suspicion
        split = self.split_memory * past + (1 - self.split_memory) * explained(z)
        evidence = self._evidence(round, relative(z).numpy())
        bound = self.below if split > self.attacked else self.far_below
        mine = torch.from_numpy(evidence)
        drop = mine < -bound
        most = int(MOST * len(z))
        if int(drop.sum()) > most:
            drop = torch.zeros_like(drop)
            drop[torch.argsort(mine, stable=True)[:most]] = True
        notes = EVIDENCE.after(round.memory, round.ids, evidence)
        progress = progress.note(**{SPLIT: np.array([split])}, **notes)

        def why(row: int) -> str:
            return f"over its rounds {-evidence[row]:.2g} spreads below the best quarter, more than {bound:g}"

        return drop, why, progress.measure(filter_split=split, filter_share=float(drop.double().mean()))

    def _evidence(self, round: Round, now: np.ndarray) -> np.ndarray:
        """What is known of the round's clients: the past and this round, or this round alone for newcomers."""
        before, kept = EVIDENCE.of(round.memory, round.ids), self.evidence_memory
        return np.where(np.isnan(before), now, kept * before + (1 - kept) * now)


def relative(z: Tensor) -> Tensor:
    """How far below the round's upper quartile, in spreads (median distance from the median)."""
    spread = (z - z.median()).abs().median()
    return (z - torch.quantile(z, 0.75)) / spread if float(spread) > 0 else torch.zeros_like(z)


def explained(z: Tensor) -> float:
    """The largest part of the variance that a cut of the sorted values in two explains (Otsu)."""
    values = torch.sort(z).values
    n = len(values)
    total = float(((values - values.mean()) ** 2).sum())
    if n < 2 or total <= 0:
        return 0.0
    between = [k * (n - k) / n * (values[k:].mean() - values[:k].mean()) ** 2 for k in range(1, n)]
    return float(max(between)) / total
