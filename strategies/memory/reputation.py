"""Reputation: a client that is filtered often is sampled less, never to zero."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from thistle.strategies.memory.per_client import Memory, PerClient

FORGET = 0.2
"""λ: r_i ← (1 − λ) r_i + λ·accepted."""
LEAST = 0.05
"""An honest client with odd data must be able to return."""
REPUTATION = PerClient("reputation", unseen=1.0)


def chances(memory: Memory, available: np.ndarray) -> np.ndarray:
    """Sampling probabilities of the available clients, ∝ max(r_i, r_min)."""
    weights = np.maximum(REPUTATION.of(memory, available), LEAST)
    return weights / weights.sum()


def judged(memory: Memory, accepted: Collection[int], excluded: Collection[int]) -> dict[str, np.ndarray]:
    """What to remember after a round. Who failed to answer is not judged."""
    clients = [*sorted(accepted), *sorted(excluded)]
    verdicts = np.array([1.0] * len(accepted) + [0.0] * len(excluded))
    before = REPUTATION.of(memory, clients)
    return REPUTATION.after(memory, clients, (1 - FORGET) * before + FORGET * verdicts)
