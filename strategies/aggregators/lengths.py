"""How long the updates are, and how much is left of those that are too long."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def length(values: Tensor, ord: float = 2.0) -> float:
    """The norm of one vector, in float32 unless it would overflow there."""
    found = float(torch.linalg.vector_norm(values, ord=ord))
    return found if math.isfinite(found) else float(torch.linalg.vector_norm(values, ord=ord, dtype=torch.float64))


def shortened(norms: Tensor, bound: Tensor) -> Tensor:
    """min(1, S/‖Δ_i‖), and 1 for zero vectors."""
    return torch.where(norms > bound, bound / norms.clamp(min=torch.finfo(torch.float64).tiny), 1.0)


def shares_of(kept: Tensor, weights: Tensor) -> Tensor:
    """The weights of those that are kept (n booleans), scaled to sum 1; equal ones where these have no weight."""
    chosen = torch.where(kept, weights, 0.0)
    total = chosen.sum()
    return chosen / total if float(total) > 0 else kept.double() / kept.sum()
