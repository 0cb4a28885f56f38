"""Pre-steps: each answers with an n' x n matrix whose rows sum to 1; the rule that follows takes it as `mixing`."""

from __future__ import annotations

import torch
from torch import Tensor

from thistle.strategies.aggregators.block import require, require_block
from thistle.strategies.aggregators.gram import gram, squared_distances


def nearest_neighbour_mixing(updates: Tensor, f: int, *, products: Tensor | None = None) -> Tensor:
    """NNM: each update becomes the mean of the n - f nearest to it, itself among them (Allouah et al. 2023).

    2f < n; equal distances: the first row. n x n, float64. Cost: one Gram pass, none with `products`.
    """
    n, _ = require_block(updates)
    require(0 <= 2 * f < n, f"nearest-neighbour mixing needs 0 ≤ 2f < n; got f={f}, n={n}")
    distances = squared_distances(gram(updates) if products is None else products)
    nearest = distances.fill_diagonal_(-1.0).sort(dim=1, stable=True).indices[:, : n - f]
    return torch.zeros_like(distances).scatter_(1, nearest, 1.0 / (n - f))


def bucketing(updates: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Means of random buckets of `size` updates, the last one perhaps smaller (Karimireddy et al. 2022).

    ⌈n/size⌉ x n, float64. With f attackers up to f buckets are spoilt: the rule that follows must bear that. Cost n.
    """
    n, _ = require_block(updates)
    require(1 <= size <= n, f"bucketing needs 1 ≤ size ≤ n; got size={size}, n={n}")
    order = torch.randperm(n, generator=generator)
    matrix = torch.zeros(-(-n // size), n, dtype=torch.float64)
    for bucket, row in enumerate(matrix):
        members = order[bucket * size : (bucket + 1) * size]
        row[members] = 1.0 / len(members)
    return matrix.to(updates.device)
