"""How many of a round's replies are malicious, judged by their scores alone (θ = "auto")."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from strategies.rounds import Progress, Round

MOST = 0.8
"""At most this share is ever dropped."""
MEMORY = "share"


@dataclass(frozen=True)
class MaliciousShare:
    """Splits the sorted scores in two where that explains most of their variance (Otsu), if it explains enough.

    The share is smoothed over rounds: the attackers' share of all clients is constant, that of a round is not.
    """

    explained: float = 0.8
    smoothing: float = 0.3

    def count(self, round: Round, progress: Progress, scores: Tensor) -> tuple[int, Progress]:
        """The number of lowest scores to drop in this round."""
        k = split(scores, self.explained)
        past = round.memory.get(MEMORY)
        now = k / len(scores)
        share = now if past is None else (1 - self.smoothing) * float(past[0]) + self.smoothing * now
        count = min(int(np.floor(share * len(scores) + 0.5)), int(MOST * len(scores)))
        return count, progress.note(**{MEMORY: np.array([share])}).measure(filter_share=share)


def split(scores: Tensor, explained: float) -> int:
    """Where to cut the sorted z_i = sign(s_i)√|s_i| in two; 0 where a cut explains too little."""
    z = torch.sort(torch.sign(scores) * scores.abs().sqrt()).values
    n = len(z)
    total = float(((z - z.mean()) ** 2).sum())
    if n < 2 or total <= 0:
        return 0
    best, at = 0.0, 0
    for k in range(1, int(MOST * n) + 1):
        low, high = z[:k].mean(), z[k:].mean()
        between = float(k * (n - k) / n * (high - low) ** 2)
        if between > best:
            best, at = between, k
    return at if best / total >= explained else 0
