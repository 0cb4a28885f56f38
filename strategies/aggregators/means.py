"""The mean, and the geometric median: combinations of whole updates."""

from __future__ import annotations

from torch import Tensor

from thistle.strategies.aggregators.block import Aggregate, combine, original, require, require_weights, rows_seen
from thistle.strategies.aggregators.gram import distances_to, gram, mixed
from thistle.strategies.aggregators.numpy_input import accepts_numpy


@accepts_numpy
def mean(updates: Tensor, weights: Tensor | None = None, *, mixing: Tensor | None = None) -> Aggregate:
    """Σ w_i Δ_i, weights scaled to sum 1, uniform where none are given: FedAvg (McMahan et al. 2017).

    One pass, limited by memory bandwidth.
    """
    shares = original(require_weights(weights, rows_seen(updates, mixing), updates), mixing)
    return Aggregate(combine(updates, shares), shares)


@accepts_numpy
def geometric_median(
    updates: Tensor,
    weights: Tensor | None = None,
    steps: int = 4,
    nu: float = 1e-6,
    tolerance: float = 1e-6,
    *,
    mixing: Tensor | None = None,
    products: Tensor | None = None,
) -> Aggregate:
    """The point z with the least Σ alpha_i ‖z - Δ_i‖, by the smoothed Weiszfeld algorithm (RFA, Pillutla et al. 2022).

    From the mean, w_i ∝ alpha_i / max(nu, ‖z - Δ_i‖), at most `steps` times, until the sum changes by no more than
    `tolerance`, relatively (0: all steps are taken). To convergence: steps=1000, tolerance=0.
    All iterates are combinations Σ w_i Δ_i, so they are followed on the Gram matrix.

    Cost: one Gram pass (2n²d operations) and one combination (n·d values read); a step costs n².
    """
    require(steps >= 0 and nu > 0 and tolerance >= 0, "geometric median: steps ≥ 0, nu > 0, tolerance ≥ 0 are needed")
    alpha = require_weights(weights, rows_seen(updates, mixing), updates)
    products = mixed(gram(updates) if products is None else products, mixing)
    share = alpha
    distances = distances_to(products, share)
    for _ in range(steps):
        objective = float(alpha @ distances)
        share = alpha / distances.clamp(min=nu)
        share = share / share.sum()
        distances = distances_to(products, share)
        if tolerance > 0 and abs(objective - float(alpha @ distances)) <= tolerance * objective:
            break
    shares = original(share, mixing)
    return Aggregate(combine(updates, shares), shares)
