"""DnC: who stands out along the direction in which the updates differ most."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from thistle.strategies.aggregators.block import Aggregate, combine, require, require_block, require_weights
from thistle.strategies.aggregators.lengths import shares_of
from thistle.strategies.aggregators.numpy_input import accepts_numpy


@accepts_numpy
def dnc(
    updates: Tensor,
    f: int,
    generator: np.random.Generator,
    c: float = 1.0,
    coordinates: int = 10_000,
    repeats: int = 1,
    weights: Tensor | None = None,
) -> Aggregate:
    """The mean of those that no repeat drops (Shejwalkar & Houmansadr 2021).

    A repeat draws `coordinates` of the d, without replacement, and drops the ⌈c·f⌉ with the largest ⟨Δ_i − μ, v⟩², v
    the top right singular vector of the centred rows; equal scores: the last rows. Nobody is left: those that were
    dropped least often. Scores: the mean over repeats.

    Cost: per repeat n·b values gathered and an n x n eigenproblem (⟨Δ_i − μ, v⟩ = σ·u_i); one combination.
    """
    n, d = require_block(updates)
    gone = dropped_by_dnc(f, c)
    require(0 <= gone < n and repeats >= 1, f"DnC needs ⌈c·f⌉ < n and repeats ≥ 1; got {gone}, n={n}, {repeats}")
    times, scores = torch.zeros(n, dtype=torch.int64), torch.zeros(n, dtype=torch.float64)
    for _ in range(repeats):
        found = outlier_scores(updates[:, draw(generator, d, coordinates)])
        times[found.sort(stable=True).indices[n - gone :]] += 1
        scores += found / repeats
    shares = shares_of(times == times.min(), require_weights(weights, n, updates))
    return Aggregate(combine(updates, shares), shares, scores)


def dropped_by_dnc(f: int, c: float) -> int:
    """⌈c·f⌉ as written: 1.1 of 10 is 11, though the product of the floats is a little more."""
    return math.ceil(c * f - 1e-9)


def draw(generator: np.random.Generator, d: int, count: int) -> Tensor:
    """`count` of d coordinates (all where there are fewer), in ascending order."""
    if count >= d:
        return torch.arange(d)
    return torch.from_numpy(np.sort(generator.choice(d, count, replace=False, shuffle=False)))


def outlier_scores(rows: Tensor) -> Tensor:
    """⟨Δ_i − μ, v⟩² for the direction v in which the rows vary most: n values, float64."""
    scale = rows.abs().max().clamp(min=torch.finfo(rows.dtype).tiny)
    centred = rows / scale
    centred -= centred.mean(dim=0)
    values, vectors = torch.linalg.eigh(torch.mm(centred, centred.T).double())
    return values[-1].clamp(min=0) * vectors[:, -1] ** 2 * float(scale) ** 2
