"""Rules that keep the largest cluster of clients: FLAME by their models' angles, SignGuard by their updates' signs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from thistle.strategies.aggregators.block import Aggregate, combine, require, require_block, require_weights
from thistle.strategies.aggregators.gram import gram, norms, squared_distances
from thistle.strategies.aggregators.lengths import shares_of, shortened
from thistle.strategies.aggregators.numpy_input import accepts_numpy
from thistle.strategies.aggregators.spectral import draw


@accepts_numpy
def flame(
    updates: Tensor,
    model: Tensor | None = None,
    noise: float = 0.0,
    generator: torch.Generator | None = None,
    weights: Tensor | None = None,
) -> Aggregate:
    """The mean of HDBSCAN's majority, each Δ_i shortened to the median length S, plus noise (Nguyen et al. 2022).

    Distances are 1 − cos of the clients' models x + Δ_i (`model` x; None: of the updates); for the cluster see
    `majority_cluster`. S: the lower median over all clients. `noise` is λ: N(0, (λS)²) is added to every value, from
    `generator`. Scores: the mean distance to the others.

    Cost: one Gram pass over n + 1 rows, n² for the cluster, one combination, d normal draws.
    """
    n, d = require_block(updates)
    require(noise >= 0, f"FLAME needs noise ≥ 0; got {noise}")
    distances = cosine_distances(updates, model)
    lengths = norms(updates)
    bound = lengths.median()
    shares = shares_of(majority_cluster(distances), require_weights(weights, n, updates))
    vector = combine(updates, shares * shortened(lengths, bound))
    if noise:
        vector += torch.randn(d, generator=generator, dtype=vector.dtype) * (noise * float(bound))
    return Aggregate(vector, shares, distances.sum(dim=1) / max(1, n - 1))


def cosine_distances(updates: Tensor, model: Tensor | None = None) -> Tensor:
    """1 − cos(x + Δ_i, x + Δ_j), n x n, float64; of a zero vector 1, of two of them 0.

    Of vectors a, b with similar lengths by (‖a − b‖² − (‖a‖ − ‖b‖)²) / 2‖a‖‖b‖, which loses nothing when models are
    much longer than updates; of others by ⟨a, b⟩, which loses nothing when one of them is huge.
    """
    n, _ = require_block(updates)
    origin = updates.new_zeros(updates.shape[1]) if model is None else model
    products = gram(updates, extra=origin, centred=False)
    own, inner, along, whole = products.diagonal()[:n], products[:n, :n], products[:n, n], products[n, n]
    since = 2 * along + own  # ‖x + Δ_i‖² − ‖x‖²
    norms = (since + whole).clamp(min=0).sqrt()
    sums, sizes = norms[:, None] + norms[None, :], norms[:, None] * norms[None, :]
    longer = torch.where(sums > 0, (since[:, None] - since[None, :]) / sums, 0.0)
    near = (squared_distances(products)[:n, :n] - longer**2) / (2 * sizes)
    far = 1 - (whole + along[:, None] + along[None, :] + inner) / sizes
    alike = longer.abs() < torch.minimum(norms[:, None], norms[None, :])
    distances = torch.where(sizes > 0, torch.where(alike, near, far), (sums > 0).double())
    return distances.clamp(0.0, 2.0).fill_diagonal_(0.0)


def majority_cluster(distances: Tensor) -> Tensor:
    """n booleans: the first cluster of more than half of the points that single linkage makes.

    Points are joined in order of their distances until a cluster has ⌊n/2⌋ + 1 members, equal distances together.
    That is what HDBSCAN finds with that minimum size and min_samples = 1: such a cluster cannot fall in two, and the
    points that leave it last are the cluster. Cost n².
    """
    n = len(distances)
    label, enough = np.arange(n), np.inf
    for distance, a, b in sorted(_spanning_tree(distances.numpy())):
        if distance > enough:
            break
        label[label == label[b]] = label[a]
        if (label == label[a]).sum() > n // 2:
            enough = distance
    return torch.from_numpy(label == np.bincount(label).argmax())


def _spanning_tree(distances: np.ndarray) -> Iterator[tuple[float, int, int]]:
    """The edges of a minimum spanning tree (Prim), each with its length."""
    n = len(distances)
    nearest, away = np.zeros(n, int), distances[0].copy()
    away[0] = np.inf
    outside = np.arange(n) > 0
    for _ in range(n - 1):
        new = int(np.argmin(away))
        yield float(away[new]), int(nearest[new]), new
        outside[new], away[new] = False, np.inf
        closer = outside & (distances[new] < away)
        nearest[closer], away[closer] = new, distances[new][closer]


@accepts_numpy
def signguard(
    updates: Tensor,
    generator: np.random.Generator,
    share: float = 0.1,
    low: float = 0.1,
    high: float = 3.0,
    weights: Tensor | None = None,
) -> Aggregate:
    """The mean of those with usual lengths and signs, shortened to the median length (Xu et al. 2022).

    Usual lengths: `low` to `high` times the (lower) median. Usual signs: the largest cluster that MeanShift finds among
    the shares of +, 0 and − on a part `share` of the coordinates, each divided by the largest. Where nobody has both,
    usual lengths are enough. Scores: the distance of a client's shares to the mean of the cluster's.

    Needs scikit-learn. Cost: one pass for lengths, n·d·`share` values gathered, MeanShift on n points, one combination.
    """
    n, d = require_block(updates)
    require(0 < share <= 1 and 0 <= low <= 1 <= high, f"SignGuard: share={share}, low={low}, high={high}")
    lengths = norms(updates)
    bound = lengths.median()
    usual = (lengths >= low * bound) & (lengths <= high * bound)
    features = sign_shares(updates[:, draw(generator, d, max(1, int(share * d)))])
    alike = largest_cluster(features)
    kept = usual & alike if bool((usual & alike).any()) else usual
    shares = shares_of(kept, require_weights(weights, n, updates))
    scores = torch.linalg.vector_norm(features - features[alike].mean(dim=0), dim=1)
    return Aggregate(combine(updates, shares * shortened(lengths, bound)), shares, scores)


def sign_shares(rows: Tensor) -> Tensor:
    """The parts of each row that are above, at and below 0, each divided by the largest of all rows: n x 3."""
    signs = (rows > 0, rows == 0, rows < 0)
    parts = torch.stack([one.sum(dim=1) for one in signs], dim=1).double() / rows.shape[1]
    return parts / parts.max(dim=0).values.clamp(min=1e-8)


def largest_cluster(points: Tensor) -> Tensor:
    """n booleans: MeanShift's largest cluster, its bandwidth the mean distance to the ⌊n/2⌋-th neighbour."""
    from sklearn.cluster import MeanShift, estimate_bandwidth

    values = points.numpy()
    bandwidth = estimate_bandwidth(values, quantile=0.5)
    if not bandwidth > 0:
        return torch.ones(len(points), dtype=torch.bool)
    labels = MeanShift(bandwidth=bandwidth, bin_seeding=True, cluster_all=False).fit(values).labels_
    return torch.from_numpy(labels == np.bincount(labels[labels >= 0]).argmax())
