"""Clipping: one vector, each update, or all updates around a centre."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from thistle.strategies.aggregators.block import Aggregate, combine, original, require, require_weights, rows_seen
from thistle.strategies.aggregators.gram import distances_to, gram, mixed, norms
from thistle.strategies.aggregators.numpy_input import accepts_numpy


def clip(vector: Tensor, tau: float) -> Tensor:
    """v·min(1, τ/‖v‖), the norm in float64. Cost d."""
    require(tau >= 0, f"clip needs tau ≥ 0; got {tau}")
    norm = float(torch.linalg.vector_norm(vector, dtype=torch.float64))
    require(math.isfinite(norm), "clip: the vector holds NaN or Inf")
    return vector if norm <= tau else vector * (tau / norm)


@accepts_numpy
def centered_clipping(
    updates: Tensor,
    tau: float,
    steps: int = 1,
    start: Tensor | None = None,
    *,
    mixing: Tensor | None = None,
) -> Aggregate:
    """v ← v + mean_i (Δ_i - v)·min(1, τ/‖Δ_i - v‖), `steps` times from `start` (Karimireddy et al. 2021).

    `start`: the previous round's aggregate, or 0. Every v is a combination of the updates and the start, so the
    steps run on the Gram matrix of the n + 1 vectors. The clients' weights sum to 1 less what the start keeps.

    Cost: one Gram pass over n + 1 rows, copied chunk by chunk, and one combination; a step costs n².
    """
    n = rows_seen(updates, mixing)
    require(tau > 0 and steps >= 1, f"centered clipping needs tau > 0 and steps ≥ 1; got tau={tau}, steps={steps}")
    start = updates.new_zeros(updates.shape[1]) if start is None else start
    if mixing is not None:
        with_start = mixing.new_zeros(n + 1, mixing.shape[1] + 1)
        with_start[:n, :-1], with_start[n, -1] = mixing, 1.0
        mixing = with_start
    products = mixed(gram(updates, extra=start), mixing)
    weights = torch.zeros(n + 1, dtype=torch.float64, device=updates.device)
    weights[n] = 1.0
    for _ in range(steps):
        scale = (tau / distances_to(products, weights)[:n]).clamp(max=1.0)
        weights = weights * (1.0 - scale.mean())
        weights[:n] += scale / n
    weights = original(weights, mixing)
    vector = combine(updates, weights[:-1]).add_(start, alpha=float(weights[-1]))
    return Aggregate(vector, weights[:-1])


def unit(vector: Tensor) -> Tensor:
    """The vector with length 1; zero stays zero."""
    return vector / vector.norm().clamp_min(torch.finfo(vector.dtype).tiny)


@accepts_numpy
def clipped_mean(
    updates: Tensor,
    weights: Tensor | None = None,
    bound: float | None = None,
    *,
    mixing: Tensor | None = None,
) -> Aggregate:
    """Σ w_i Δ_i·min(1, S/‖Δ_i‖): norm clipping (Sun et al. 2019). S is `bound`, or the rows' median norm.

    The median goes by rows, not by weights. Weights are the coefficients: they sum to 1 less what was clipped.
    Cost: two passes, limited by memory bandwidth; after a pre-step one Gram pass more, for the mixed rows' norms.
    """
    shares = require_weights(weights, rows_seen(updates, mixing), updates)
    require(bound is None or bound > 0, f"norm clipping needs a bound above 0; got {bound}")
    if mixing is None:
        lengths = norms(updates)
    else:
        lengths = mixed(gram(updates, centred=False), mixing).diagonal().clamp(min=0).sqrt()
    limit = lengths.quantile(0.5) if bound is None else torch.tensor(bound, dtype=torch.float64, device=updates.device)
    shares = original(shares * _shrink(lengths, limit), mixing)
    return Aggregate(combine(updates, shares), shares)


def adaptive_clipping(updates: Tensor, f: int) -> Tensor:
    """ARC: what to multiply each update by, so that the k longest get the next one's length (Allouah et al. 2025).

    k = ⌊2(f/n)(n - f)⌋, 2f < n. n values, float64, 1 for all others. Cost: one pass, limited by memory bandwidth.
    """
    lengths = norms(updates)
    n = len(lengths)
    require(0 <= 2 * f < n, f"adaptive clipping needs 0 ≤ 2f < n; got f={f}, n={n}")
    k = 2 * f * (n - f) // n
    return _shrink(lengths, lengths.sort().values[n - k - 1])


def _shrink(lengths: Tensor, limit: Tensor) -> Tensor:
    """min(1, limit/‖Δ_i‖); 1 where an update is zero."""
    return torch.where(lengths > limit, limit / lengths, 1.0)
