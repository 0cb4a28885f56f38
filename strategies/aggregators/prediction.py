"""FLDetector: what a client should have sent, by its last update and how the model moved; who keeps missing it."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from thistle.strategies.aggregators.block import require
from thistle.strategies.aggregators.gram import norms

REFERENCES = 10
"""Uniform samples that a split is compared with, as in the authors' code."""
FEWEST = 5
"""Scores below which nothing is said: any two numbers make two perfect clusters."""


def hessian_product(moves: Tensor, changes: Tensor, v: Tensor) -> Tensor:
    """Ĥv by L-BFGS in its compact form, from k past moves s of the model and changes y of its updates (k x d each).

        Ĥ = σI − [σS Y] M⁻¹ [σS Y]ᵀ,   M = [σSᵀS  L; Lᵀ  −D],   σ = y_kᵀs_k / s_kᵀs_k

    L is the strict lower triangle of SᵀY, D its diagonal (Byrd et al. 1994). Moves of length 0 say nothing.
    Cost: 2k + 1 inner products with each of the 2k rows, one combination of them.
    """
    require(moves.shape == changes.shape, f"as many moves as changes; got {moves.shape}, {changes.shape}")
    told = torch.linalg.vector_norm(moves, dim=1) > 0
    if not bool(told.any()):
        return torch.zeros_like(v)
    s, y = (moves, changes) if bool(told.all()) else (moves[told], changes[told])
    ss, sy = (s @ s.T).double(), (s @ y.T).double()
    sigma = sy[-1, -1] / ss[-1, -1]
    lower = sy.tril(-1)
    middle = torch.cat([torch.cat([sigma * ss, lower], dim=1), torch.cat([lower.T, -sy.diag().diag()], dim=1)])
    sides = torch.cat([sigma * (s @ v).double(), (y @ v).double()])
    weights = torch.linalg.pinv(middle, rtol=1e-6, hermitian=True) @ sides
    left, right = (weights.to(v.dtype)[part] for part in (slice(len(s)), slice(len(s), None)))
    factor = float(sigma)
    return factor * v - factor * (left @ s) - right @ y


def prediction_errors(pairs: Iterable[tuple[Tensor, Tensor]], product: Tensor) -> Tensor:
    """‖Δ_i^{t−1} + Ĥ(x_t − x_{t−1}) − Δ_i^t‖ for every client's (Δ_i^t, Δ_i^{t−1}), float64. One pass, row by row."""
    return torch.cat([norms((before - now).add_(product)[None]) for now, before in pairs])


def upper_cluster(values: np.ndarray) -> tuple[np.ndarray, float]:
    """The two clusters with the least summed squares, exactly: who is in the upper one, and that sum. Cost n log n."""
    order = np.argsort(values, kind="stable")
    rows = values[order]
    counts = np.arange(1, len(rows))
    sums, squares = np.cumsum(rows)[:-1], np.cumsum(rows**2)[:-1]
    within = (squares - sums**2 / counts) + (
        (rows**2).sum() - squares - (rows.sum() - sums) ** 2 / (len(rows) - counts)
    )
    cut = int(np.argmin(within)) + 1
    upper = np.zeros(len(values), bool)
    upper[order[cut:]] = True
    return upper, max(0.0, float(within[cut - 1]))


def is_split(values: np.ndarray, generator: np.random.Generator) -> bool:
    """Whether the gap statistic finds more than one cluster (Tibshirani et al. 2001): Gap(1) < Gap(2) − s₂.

    Gap(k) = mean log W_k of uniform samples − log W_k of the values scaled to [0, 1]. One cluster is right as soon as
    it is right against two, so no further k is tried.
    """
    if len(values) < FEWEST or not np.ptp(values) > 0:
        return False
    scaled = (values - values.min()) / np.ptp(values)
    drawn = [_log_within(generator.uniform(0.0, 1.0, len(values))) for _ in range(REFERENCES)]
    one, two = (np.array(column) for column in zip(*drawn, strict=True))
    own = _log_within(scaled)
    slack = two.std() * math.sqrt(1 + 1 / REFERENCES)
    return bool(one.mean() - own[0] < two.mean() - own[1] - slack)


def _log_within(values: np.ndarray) -> tuple[float, float]:
    """log W_1 and log W_2; rounding leaves nothing below 1e-12."""
    whole = float(((values - values.mean()) ** 2).sum())
    return math.log(max(whole, 1e-12)), math.log(max(upper_cluster(values)[1], 1e-12))
