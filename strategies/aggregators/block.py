"""What all aggregators share: the answer's type, the checks, and the last pass over the data."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

FLOATS = (torch.float32, torch.float64)


@dataclass(frozen=True, eq=False)
class Aggregate:
    """A rule's answer.

    `vector`: d values, of the updates' type. `weights`: n values, float64, what each client had in it, always given:
    - a combination of whole updates: the coefficients. They sum to 1 (`fltrust`: 0 where nobody is trusted;
      `centered_clipping`: less than 1 by what the starting point keeps; `clipped_mean`: by what was clipped);
    - a rule that works coordinate by coordinate (median, trimmed mean, MeaMed, Bulyan): the number of coordinates in
      which the client's value was kept, times its own weight if it has one, divided by the sum over all clients.
      Equal values are kept or dropped together;
    - a mean of shortened updates (`flame`, `signguard`, `lasa`): the share that each had in the mean.
    `scores`: n values, float64, by which the rule judged the clients; None: it gives none.
    """

    vector: Tensor
    weights: Tensor
    scores: Tensor | None = None


def require(condition: bool, message: str) -> None:
    """Raise ValueError(message) unless the condition holds."""
    if not condition:
        raise ValueError(message)


def require_block(updates: Tensor) -> tuple[int, int]:
    """The block's n and d; ValueError if it is not a block."""
    shape = tuple(updates.shape)
    require(updates.ndim == 2 and min(shape) > 0, f"updates must be n x d with n, d ≥ 1; got shape {shape}")
    require(updates.dtype in FLOATS, f"updates must be float32 or float64; got {updates.dtype}")
    return shape[0], shape[1]


def require_finite(updates: Tensor) -> None:
    """ValueError naming the first row with NaN or Inf. Slow: only called when a sum over all values is not."""
    for i, row in enumerate(updates):
        require(bool(torch.isfinite(row).all()), f"updates: row {i} holds NaN or Inf; such rows are filtered before")


def require_weights(weights: Tensor | None, n: int, like: Tensor) -> Tensor:
    """Weights as float64 with sum 1; uniform where none are given."""
    if weights is None:
        return torch.full((n,), 1.0 / n, dtype=torch.float64, device=like.device)
    weights = weights.to(device=like.device, dtype=torch.float64)
    require(
        tuple(weights.shape) == (n,), f"weights must have one value per row ({n}); got shape {tuple(weights.shape)}"
    )
    total = float(weights.sum())
    valid = bool((weights >= 0).all()) and 0 < total < float("inf")
    require(valid, "weights must be finite and ≥ 0 with a sum above 0")
    return weights / total


def rows_seen(updates: Tensor, mixing: Tensor | None) -> int:
    """The number of rows that a rule sees: n, or n' after a pre-step."""
    n, _ = require_block(updates)
    if mixing is None:
        return n
    fits = mixing.ndim == 2 and mixing.shape[1] == n and mixing.shape[0] > 0
    require(fits, f"mixing must be n' x {n}; got shape {tuple(mixing.shape)}")
    return mixing.shape[0]


def original(weights: Tensor, mixing: Tensor | None) -> Tensor:
    """Weights of mixed rows as weights of the clients: Mᵀw."""
    return weights if mixing is None else mixing.T @ weights


def combine(updates: Tensor, weights: Tensor) -> Tensor:
    """Σ w_i Δ_i in the updates' type. One pass, limited by memory bandwidth; nothing but the result allocated."""
    require_block(updates)
    vector = torch.mv(updates.T, weights.to(updates.dtype))
    if not torch.isfinite(vector.sum()):
        require_finite(updates)
    return vector
