"""How far an update agrees with learning on the server's data, whatever mixture of classes its client has.

The mean gradient g0 is no fair judge of a client that holds two classes of ten: it disagrees with the mean and is
honest. What honest training on any mixture of classes does lies near the cone of the classes' own descent directions
−∇f_c. So an update u is scored by how much of it lies in that cone A, less how much of −u does:

    c(u) = (‖P_A u‖ − ‖P_A(−u)‖) / ‖u‖          in [−1, 1]; 1: wholly inside, −1: wholly opposed, 0: neither, or u = 0

once for the whole update and once for its head (the last linear layer), where classes show best; the score is the mean
of the two. The head is centred first: a flip of labels is hidden there by what all classes have in common, the mean of
the rows and the part along the mean feature.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from thistle.strategies.aggregators import combine, geometric_median
from thistle.strategies.aggregators.gram import CHUNK_VALUES

TINY = 1e-30
STEPS = 200
"""Of the accelerated projected gradient that finds P_A u; on a C × C problem each costs nothing."""


@dataclass(frozen=True)
class Head:
    """The last linear layer in the flat vector, and the mean of its inputs over the server's data."""

    start: int
    """Where its weights begin."""
    rows: int
    feature: Tensor

    def centred(self, vectors: Tensor) -> Tensor:
        """The head's weights, n × (rows·columns), without what all rows share and without the mean feature's part."""
        size = self.rows * len(self.feature)
        weights = vectors[:, self.start : self.start + size].double().reshape(len(vectors), self.rows, -1)
        along = self.feature.double()
        along = along / along.norm().clamp_min(TINY)
        weights = weights - (weights @ along)[..., None] * along
        return (weights - weights.mean(dim=1, keepdim=True)).reshape(len(vectors), size)


@dataclass(frozen=True)
class Anchor:
    """What updates are held against: directions of honest learning, one per class, and where the head is."""

    directions: Tensor
    """C × d."""
    head: Head | None
    """None: the network has no such layer, and whole updates are all there is."""

    def scores(self, updates: Tensor, lengths: Tensor) -> Tensor:
        """c of every row, float64: the mean of the whole update's and the centred head's."""
        whole = cone_scores(updates, self.directions, lengths)
        if self.head is None:
            return whole
        head = self.head.centred(updates)
        return (whole + cone_scores(head, self.head.centred(self.directions), head.norm(dim=1))) / 2

    def view(self, vectors: Tensor) -> Tensor:
        """The part of vectors in which clients are compared with what was accepted before: the head, or all."""
        return vectors if self.head is None else self.head.centred(vectors)


def majority(updates: Tensor, products: Tensor) -> Anchor:
    """Without server data: the direction in which most updates go, each taken to be as long as the others.

    `products`: the updates' inner products, by which this is found without a copy of the block.
    """
    scale = products.diagonal().clamp_min(TINY).rsqrt()
    found = geometric_median(updates, products=products * scale[:, None] * scale)
    return Anchor(combine(updates, found.weights * scale)[None], None)


def cone_scores(vectors: Tensor, directions: Tensor, lengths: Tensor) -> Tensor:
    """(‖P_A u‖ − ‖P_A(−u)‖) / ‖u‖ of every row u, with A the cone of the directions; `lengths`: ‖u‖, float64."""
    products, inner = _products(vectors, directions), _products(directions, directions)
    towards, away = torch.from_numpy(_projected(np.stack([products, -products]), inner.numpy()))
    return torch.where(lengths > 0, (towards - away) / lengths.clamp_min(TINY), 0.0).clamp(-1.0, 1.0)


def _products(left: Tensor, right: Tensor) -> Tensor:
    """⟨l_i, r_j⟩, float64, from products of chunks in the vectors' own type: neither block is copied."""
    width = max(2048, CHUNK_VALUES // max(len(left), len(right)))
    total = torch.zeros(len(left), len(right), dtype=torch.float64)
    for start in range(0, left.shape[1], width):
        columns = slice(start, start + width)
        total += left[:, columns] @ right[:, columns].T
    return total


def _projected(products: np.ndarray, inner: np.ndarray) -> np.ndarray:
    """‖P_A u‖ for rows of ⟨u, a_c⟩: min ‖u − Σ w_c a_c‖ over w ≥ 0, by FISTA; ‖P_A u‖ = ⟨u, P_A u⟩ / ‖P_A u‖."""
    steepest = float(np.linalg.norm(inner, ord=2))
    if steepest <= 0:
        return np.zeros(products.shape[:-1])
    products, inner = products / steepest, inner / steepest
    weights = ahead = np.zeros_like(products)
    momentum = 1.0
    for _ in range(STEPS):
        after = np.maximum(ahead - ahead @ inner + products, 0.0)
        later = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
        ahead = after + (momentum - 1) / later * (after - weights)
        weights, momentum = after, later
    squares = ((weights @ inner) * weights).sum(axis=-1)
    found: np.ndarray = (weights * products).sum(axis=-1) * (steepest / np.maximum(squares, TINY)) ** 0.5
    return found
