"""FedCPA: weights by agreement on which parameters matter most and least (Han et al. 2023)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from thistle.strategies.aggregators.block import require

PART = 0.01
"""Top and bottom 1 % of the parameters."""
CHUNK = 2**14
FEWEST = 3
"""Common parameters from which a correlation is computed."""


def importance(updates: Tensor, model: Tensor) -> Tensor:
    """c_i = |Δ_i ⊙ x_i|, x_i = x_t + Δ_i: n x D."""
    return ((updates + model) * updates).abs_()


def agreement(rows: Tensor, others: Tensor) -> Tensor:
    """The score of every pair: ½[(ρ(T)+1)/2 + (ρ(B)+1)/2] + ½[J(T) + J(B)], n x m, float64.

    T and B are the sets of the 1 % most and least important parameters, J their Jaccard index, ρ Pearson's correlation
    of the importances on what two sets have in common (fewer than 3 parameters, or no variance: 0).

    Cost: five products of n x D' and D' x m, where D' counts the parameters in any of the sets.
    """
    count = max(1, int(PART * rows.shape[1]))
    total = torch.zeros(len(rows), len(others), dtype=torch.float64)
    for largest in (True, False):
        correlation, jaccard = _compare(_extreme(rows, count, largest), _extreme(others, count, largest), count)
        total += (correlation + 1) / 4 + jaccard / 2
    return total


Chosen = tuple[Tensor, Tensor]
"""For every client, the parameters in its set and their importances (standardised): n x count each."""


def _extreme(importances: Tensor, count: int, largest: bool) -> Chosen:
    chosen = [torch.topk(row, count, largest=largest, sorted=False) for row in importances]
    values = torch.stack([found.values for found in chosen]).double()
    values = values - values.mean(dim=1, keepdim=True)  # ρ does not mind, and products lose nothing to a common offset
    spread = values.abs().amax(dim=1, keepdim=True)
    return torch.stack([found.indices for found in chosen]), values / torch.where(spread > 0, spread, 1.0)


def _compare(one: Chosen, other: Chosen, count: int) -> tuple[Tensor, Tensor]:
    """ρ and J of every pair."""
    sums = torch.zeros(6, len(one[0]), len(other[0]), dtype=torch.float64)
    for (m, a), (k, b) in _columns(one, other):
        sums += torch.stack([m @ k.T, a @ k.T, m @ b.T, a**2 @ k.T, m @ (b**2).T, a @ b.T])
    common, first, second, first_squares, second_squares, products = sums
    n = common.clamp(min=1)
    covariance = products - first * second / n
    spreads = (first_squares - first**2 / n).clamp(min=0), (second_squares - second**2 / n).clamp(min=0)
    scale = (spreads[0] * spreads[1]).sqrt()
    flat = (spreads[0] <= 1e-12 * first_squares) | (spreads[1] <= 1e-12 * second_squares)
    defined = (common >= FEWEST) & (scale > 0) & ~flat
    correlation = torch.where(defined, covariance / torch.where(defined, scale, 1.0), 0.0).clamp(-1.0, 1.0)
    return correlation, common / (2 * count - common)


def _columns(one: Chosen, other: Chosen) -> Iterator[tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]]:
    """Membership and importance, dense, some of the parameters at a time; those in neither set are left out."""
    used, places = torch.unique(torch.cat([one[0], other[0]]), return_inverse=True)
    split = places.split([len(one[0]), len(other[0])])
    for start in range(0, len(used), CHUNK):
        width = min(CHUNK, len(used) - start)
        yield (
            _dense(split[0] - start, one[1], width),
            _dense(split[1] - start, other[1], width),
        )


def _dense(places: Tensor, values: Tensor, width: int) -> tuple[Tensor, Tensor]:
    inside = (places >= 0) & (places < width)
    rows = torch.arange(len(places))[:, None].expand_as(places)[inside]
    member, value = torch.zeros(2, len(places), width, dtype=torch.float64)
    member[rows, places[inside]] = 1.0
    value[rows, places[inside]] = values[inside]
    return member, value


def critical_weights(updates: Tensor, model: Tensor, last_step: Tensor | None) -> tuple[Tensor, Tensor]:
    """FedCPA's totals and weights in [0, 1], n values each; give it only the parameters of matrix layers.

    Total: the mean score against the other clients, plus the score against the last global step, c_g = |(x_t −
    x_{t−1}) ⊙ x_t| (none: 0). Weights: rescaled to [0, 1], cut to [.01, .99], logit + ½, cut to [0, 1]; all totals
    equal: 1 for everybody.
    """
    n, width = updates.shape
    require(tuple(model.shape) == (width,), f"the model must have {width} values; got shape {tuple(model.shape)}")
    own = importance(updates, model)
    pairs = agreement(own, own)
    totals = (pairs.sum(dim=1) - pairs.diagonal()) / max(1, n - 1)
    if last_step is not None:
        totals = totals + agreement(own, (last_step * model).abs_()[None, :])[:, 0]
    low, high = float(totals.min()), float(totals.max())
    if high - low <= 1e-9 * max(1.0, abs(high)):
        return totals, torch.ones(n, dtype=torch.float64)
    scaled = ((totals - low) / (high - low)).clamp(0.01, 0.99)
    return totals, (torch.logit(scaled) + 0.5).clamp(0.0, 1.0)
