"""Weights from cosines: FLTrust (with the server's own update) and FoolsGold (among the clients)."""

from __future__ import annotations

import torch
from torch import Tensor

from thistle.strategies.aggregators.block import Aggregate, combine, require
from thistle.strategies.aggregators.gram import inner_products
from thistle.strategies.aggregators.numpy_input import accepts_numpy

LARGEST = torch.finfo(torch.float32).max
ALIKE = 1e-6


@accepts_numpy
def fltrust(updates: Tensor, reference: Tensor) -> Aggregate:
    """Σ t_i (‖Δ_0‖/‖Δ_i‖) Δ_i / Σ t_i with t_i = max(0, cos(Δ_i, Δ_0)), Δ_0 the server's update (Cao et al. 2021).

    Weights: t_i / Σ t_i. Zero updates have cosine 0. Nobody trusted: the zero vector and zero weights.
    Cost: two passes, both limited by memory bandwidth.
    """
    dots, squares = inner_products(updates, reference)
    norms = squares.sqrt()
    length = torch.linalg.vector_norm(reference, dtype=torch.float64)
    cosines = dots / (norms * length)
    trust = torch.where((norms > 0) & (length > 0), cosines, 0.0).clamp(0.0, 1.0)
    trust /= trust.sum().clamp(min=torch.finfo(torch.float64).tiny)
    factors = torch.where(trust > 0, trust * length / norms, 0.0)
    return Aggregate(combine(updates, factors.clamp(max=LARGEST)), trust)


def foolsgold(products: Tensor) -> Tensor:
    """Weights against sybils: clients whose summed updates point the same way share one vote (Fung et al. 2020).

    `products`: the Gram matrix of each client's updates summed over the rounds, `gram(history, centred=False)`.
    With cosines c_ij (0 for i = j and for zero rows) and v_i = max_j c_ij: c_ij ← c_ij·v_i/v_j where v_i < v_j
    (pardon), a_i = 1 - max_j c_ij, divided by the largest, then logit(a) + ½ cut to [0, 1]. Scaled to sum 1 here;
    all 0 where all clients point the same way (a_i below what float32 products tell apart counts as 0).
    Use: mean(updates, weights). Cost n².
    """
    n = len(products)
    require(tuple(products.shape) == (n, n), f"products must be n x n; got shape {tuple(products.shape)}")
    require(bool(torch.isfinite(products).all()), "products hold NaN or Inf")
    norms = products.diagonal().clamp(min=0).sqrt()
    lengths = norms[:, None] * norms[None, :]
    cosines = torch.where(lengths > 0, products / lengths, 0.0).clamp(-1.0, 1.0).fill_diagonal_(0.0)
    closest = cosines.max(dim=1).values
    pardon = torch.where(closest[:, None] < closest[None, :], closest[:, None] / closest[None, :], 1.0)
    a = (1.0 - (cosines * pardon).max(dim=1).values).clamp(0.0, 1.0)
    a = torch.where(a > ALIKE, a, 0.0)
    if not a.max() > 0:
        return torch.zeros_like(a)
    weights = (torch.logit((a / a.max()).clamp(max=0.99)) + 0.5).clamp(0.0, 1.0)
    return weights / weights.sum()
