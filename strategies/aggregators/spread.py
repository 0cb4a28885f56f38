"""How far apart the clients of a round are."""

from __future__ import annotations

import torch
from torch import Tensor

from thistle.strategies.aggregators.block import require_block

VALUES = 1 << 16
"""Of a chunk: it stays in the cache while it is read twice."""


def sample_variance(updates: Tensor) -> float:
    """s² = 1/(n−1) Σ‖Δ_i − Δ̄‖², CalFAT's measure of heterogeneity (Chen et al. 2022, eq. 6); 0 for one client.

    Updates and models differ by a constant, so it is the models' as well. One pass, two reads of each chunk of columns;
    sums over a chunk in float32, over chunks in float64.
    """
    n, d = require_block(updates)
    if n < 2:
        return 0.0
    width = max(256, VALUES // n)
    parts = (updates[:, start : start + width] for start in range(0, d, width))
    return sum(float(torch.linalg.vector_norm(part - part.mean(0))) ** 2 for part in parts) / (n - 1)
