"""Bant: trust by what each update does to the loss on the server's data."""

from __future__ import annotations

import torch
from torch import Tensor

from thistle.strategies.aggregators.block import require

UNDECIDED = 0.001
"""β in a round in which no update lowers the loss, as in the authors' code."""


def trial_trust(gains: Tensor, before: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """Trust after this round, and the weights of its updates, n values each (Molodtsov et al. 2025).

    `gains`: f(x) − f(x + Δ_i) on the server's data; `before`: the trust so far. With p_i = max(0, gain_i) / Σ:

        ω_i ← (1 − β) ω_i + β p_i,   weights ∝ ω_i where gain_i > 0, else 0

    Nobody gains: p_i = 1/n, β is small, and all count by their trust. Cost n.
    """
    require(0 <= beta <= 1, f"Bant needs 0 ≤ beta ≤ 1; got {beta}")
    gained = torch.where(torch.isfinite(gains), gains, 0.0).clamp(min=0)
    if not float(gained.sum()) > 0:
        trust = (1 - UNDECIDED) * before + UNDECIDED / len(before)
        return trust, trust / trust.sum()
    trust = (1 - beta) * before + beta * gained / gained.sum()
    weights = torch.where(gained > 0, trust, 0.0)
    return trust, weights / weights.sum()
