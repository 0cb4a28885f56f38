"""Multi-Metrics: three distances from the model, weighed by how they vary together."""

from __future__ import annotations

import torch
from torch import Tensor

from thistle.strategies.aggregators.block import Aggregate, combine, require, require_block, require_weights
from thistle.strategies.aggregators.gram import inner_products
from thistle.strategies.aggregators.lengths import length, shares_of
from thistle.strategies.aggregators.numpy_input import accepts_numpy


@accepts_numpy
def multi_metrics(updates: Tensor, model: Tensor, keep: float = 0.3, weights: Tensor | None = None) -> Aggregate:
    """The mean of the ⌊`keep`·n⌋ (at least 1) with the lowest scores √(tᵀ C⁻¹ t) (Huang et al. 2023).

    Of every client's model x + Δ_i three numbers are taken: its Manhattan and Euclidean distance from x, and its cosine
    with x. t_i sums, for each, the differences to the other clients; C is the covariance of the t. Directions in which
    the t do not vary count nothing (pseudo-inverse). Equal scores: the first rows.

    Cost: two passes, limited by memory bandwidth, n² and one combination.
    """
    n, _ = require_block(updates)
    require(0 < keep <= 1, f"Multi-Metrics needs 0 < keep ≤ 1; got {keep}")
    scores = mahalanobis(summed_differences(metrics_of(updates, model)))
    kept = torch.zeros(n, dtype=torch.bool)
    kept[scores.sort(stable=True).indices[: max(1, int(keep * n + 1e-9))]] = True
    shares = shares_of(kept, require_weights(weights, n, updates))
    return Aggregate(combine(updates, shares), shares, scores)


def metrics_of(updates: Tensor, model: Tensor) -> Tensor:
    """‖Δ_i‖₁, ‖Δ_i‖₂ and 1 − cos(x + Δ_i, x): n x 3, float64. Where x or x + Δ_i is 0, the cosine is."""
    dots, squares = inner_products(updates, model)
    own = torch.linalg.vector_norm(model, dtype=torch.float64)
    whole = (own**2 + 2 * dots + squares).clamp(min=0).sqrt()
    defined = (own > 0) & (whole > 0)
    lengths_ = torch.where(defined, own * whole, 1.0)
    cosine = (own**2 + dots) / lengths_
    sine_squared = ((own**2 * squares - dots**2) / lengths_**2).clamp(min=0)
    near = sine_squared / (1 + cosine.clamp(min=0))  # nothing is lost where the cosine is almost 1
    apart = torch.where(defined, torch.where(cosine > 0, near, 1 - cosine), 1.0)
    sums = torch.tensor([length(row, ord=1) for row in updates], dtype=torch.float64)
    return torch.stack([sums, squares.sqrt(), apart], dim=1)


def summed_differences(values: Tensor) -> Tensor:
    """Σ_j |v_i − v_j| in every column."""
    return torch.stack([(column[:, None] - column[None, :]).abs().sum(dim=1) for column in values.T], dim=1)


def mahalanobis(t: Tensor) -> Tensor:
    """√(tᵀ C⁻¹ t) of every row, C the rows' covariance."""
    if len(t) < 2:
        return torch.zeros(len(t), dtype=t.dtype)
    spread = t.std(dim=0)
    scaled = t / torch.where(spread > 0, spread, 1.0)  # the answer does not mind; the pseudo-inverse's bound does
    inverse = torch.linalg.pinv(torch.cov(scaled.T), rtol=1e-9, hermitian=True)
    return ((scaled @ inverse) * scaled).sum(dim=1).clamp(min=0).sqrt()
