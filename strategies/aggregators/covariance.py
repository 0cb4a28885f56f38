"""Rules that look for the direction in which the updates vary most."""

from __future__ import annotations

import torch
from torch import Tensor

from thistle.strategies.aggregators.block import Aggregate, combine, original, require, rows_seen
from thistle.strategies.aggregators.gram import gram, mixed
from thistle.strategies.aggregators.numpy_input import accepts_numpy


@accepts_numpy
def caf(updates: Tensor, f: int, *, mixing: Tensor | None = None, products: Tensor | None = None) -> Aggregate:
    """The covariance-bound agnostic filter: weights fall along the direction of largest variance (Allouah et al. 2025).

    From c = 1, while Σc > n - 2f: with the weighted mean and the covariance's top eigenvector v, τ_i = ⟨Δ_i - μ, v⟩²,
    c_i ← c_i (1 - τ_i / max τ), the maximum over those with c > 0. The answer is the mean with the least eigenvalue.
    2f < n. The eigenvector is a combination of updates, so that all is done on the Gram matrix.

    Cost: one Gram pass, one combination, and at most n times an eigenvector of an n x n matrix (n³).
    """
    n = rows_seen(updates, mixing)
    require(0 <= 2 * f < n, f"CAF needs 0 ≤ 2f < n; got f={f}, n={n}")
    products = mixed(gram(updates) if products is None else products, mixing)
    counts = torch.ones(n, dtype=torch.float64, device=updates.device)
    best, least = counts / n, float("inf")
    while float(counts.sum()) > n - 2 * f:
        shares = counts / counts.sum()
        largest, projections = _top_direction(products, shares)
        if largest < least:
            best, least = shares, largest
        spread = (projections**2).masked_fill(counts == 0, 0.0)
        if not float(spread.max()) > 0:
            break
        counts = counts * (1 - spread / spread.max())
    weights = original(best, mixing)
    return Aggregate(combine(updates, weights), weights)


def _top_direction(products: Tensor, shares: Tensor) -> tuple[float, Tensor]:
    """The covariance's largest eigenvalue, and ⟨Δ_i - μ, v⟩ for each row; zeros where nothing varies.

    Σ w_i d_i d_iᵀ has the eigenvalues of the n x n matrix √w_i ⟨d_i, d_j⟩ √w_j; from its eigenvector b,
    v = Σ √w_i b_i d_i / √λ.
    """
    projected = products @ shares
    centred = products - projected[:, None] - projected[None, :] + shares @ projected
    roots = shares.sqrt()
    matrix = roots[:, None] * centred * roots[None, :]
    size = matrix.diagonal().sum()
    values, vectors = torch.linalg.eigh(matrix / size if float(size) > 0 else matrix)
    if not float(values[-1]) > 0:
        return 0.0, torch.zeros_like(shares)
    largest = float(values[-1] * size)
    return largest, centred @ (roots * vectors[:, -1]) / largest**0.5
