"""Rules that choose clients by their distances to the others: Krum, Multi-Krum, Bulyan."""

from __future__ import annotations

import torch
from torch import Tensor

from thistle.strategies.aggregators.block import Aggregate, combine, original, require, rows_seen
from thistle.strategies.aggregators.coordinates import around_median, in_order, sweep
from thistle.strategies.aggregators.gram import gram, mixed, squared_distances
from thistle.strategies.aggregators.network import network
from thistle.strategies.aggregators.numpy_input import accepts_numpy


@accepts_numpy
def krum(updates: Tensor, f: int, *, mixing: Tensor | None = None, products: Tensor | None = None) -> Aggregate:
    """The update with the least sum of squared distances to its n - f - 2 nearest others (Blanchard et al. 2017).

    n ≥ 2f + 3. Equal scores: the first row. Cost: one Gram pass (2n²d operations), n² log n.
    """
    return multi_krum(updates, f, 1, mixing=mixing, products=products)


@accepts_numpy
def multi_krum(
    updates: Tensor, f: int, m: int | None = None, *, mixing: Tensor | None = None, products: Tensor | None = None
) -> Aggregate:
    """The mean of the m updates with the best Krum scores (Blanchard et al. 2017), m = n - f where not given.

    n ≥ 2f + 3, 1 ≤ m ≤ n - f. Cost: Krum's and one combination.
    """
    n = rows_seen(updates, mixing)
    require(f >= 0 and n >= 2 * f + 3, f"Krum needs f ≥ 0 and n ≥ 2f + 3; got f={f}, n={n}")
    m = n - f if m is None else m
    require(1 <= m <= n - f, f"Multi-Krum needs 1 ≤ m ≤ n - f; got m={m}, f={f}, n={n}")
    distances = squared_distances(mixed(gram(updates) if products is None else products, mixing))
    scores = _scores(distances, n - f - 2)
    best = scores.sort(stable=True).indices[:m]
    weights = torch.zeros(n, dtype=torch.float64, device=updates.device).index_fill_(0, best, 1.0 / m)
    if mixing is not None:  # the scores are those of mixed rows
        weights = original(weights, mixing)
        return Aggregate(combine(updates, weights), weights)
    return Aggregate(updates[int(best)].clone() if m == 1 else combine(updates, weights), weights, scores)


@accepts_numpy
def bulyan(updates: Tensor, f: int, *, mixing: Tensor | None = None, products: Tensor | None = None) -> Aggregate:
    """Krum, again and again, until θ = n - 2f are chosen; then per coordinate the mean of the θ - 2f values nearest
    to their median (El Mhamdi et al. 2018).

    n ≥ 4f + 3. With r rows left, Krum counts the max(1, r - f - 2) nearest others (the paper's number would be 0 or
    less for the last rows when f < 2). Equal scores: the first row, and with one neighbour counted (f < 3, the last
    rows) two that are each other's nearest always tie; values equally near: the lower one.
    Weights: the share of coordinates, see `Aggregate`. Cost: one Gram pass, θn² for the choice, a sorting network
    over θ rows.
    """
    n = rows_seen(updates, mixing)
    require(f >= 0 and n >= 4 * f + 3, f"Bulyan needs f ≥ 0 and n ≥ 4f + 3; got f={f}, n={n}")
    distances = squared_distances(mixed(gram(updates) if products is None else products, mixing))
    chosen, theta = _choose(distances, f), n - 2 * f
    sorting = network(theta, 0, theta - 1, inside_sorted=True)
    reduce = in_order(sorting, lambda rows: around_median(rows, theta - 2 * f))
    rows = None if mixing is None else mixing[chosen]
    vector, counts = sweep(updates, theta, reduce, mixing=rows, chosen=chosen)
    weights = torch.zeros(n, dtype=torch.float64, device=updates.device).index_copy_(0, chosen, counts / counts.sum())
    return Aggregate(vector, original(weights, mixing))


def _scores(distances: Tensor, neighbours: int) -> Tensor:
    """For each row the sum of its smallest distances to others."""
    others = distances.clone().fill_diagonal_(float("inf"))
    return others.sort(dim=1).values[:, :neighbours].sum(dim=1)


def _choose(distances: Tensor, f: int) -> Tensor:
    """Bulyan's n - 2f rows, in row order. Sorted once; rows that are gone are skipped when scores are summed."""
    n = len(distances)
    nearest, who = distances.clone().fill_diagonal_(float("inf")).sort(dim=1)
    nearest[:, -1] = 0  # the row itself, at an infinite distance: never counted below
    left = torch.ones(n, dtype=torch.bool, device=distances.device)
    for remaining in range(n, 2 * f, -1):
        there = left[who]
        there[:, -1] = False
        counted = there & (there.cumsum(dim=1) <= max(1, remaining - f - 2))
        scores = (nearest * counted).sum(dim=1).masked_fill_(~left, float("inf"))
        left[scores.sort(stable=True).indices[0]] = False
    return (~left).nonzero().flatten()
