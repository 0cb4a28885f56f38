"""Reputation: a client that is filtered often is sampled less, never to zero."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

FORGET = 0.2
"""λ: r_i ← (1 − λ) r_i + λ·accepted."""
LEAST = 0.05
"""An honest client with odd data must be able to return."""


def chances(reputation: np.ndarray, available: np.ndarray) -> np.ndarray:
    """Sampling probabilities of the available clients, ∝ max(r_i, r_min)."""
    weights = np.maximum(reputation[available], LEAST)
    return weights / weights.sum()


def updated(reputation: np.ndarray, accepted: Collection[int], excluded: Collection[int]) -> np.ndarray:
    """After a round. Who failed to answer is not judged."""
    after = reputation.copy()
    for clients, verdict in ((accepted, 1.0), (excluded, 0.0)):
        chosen = np.array(sorted(clients), dtype=np.int64)
        after[chosen] = (1 - FORGET) * after[chosen] + FORGET * verdict
    return after
