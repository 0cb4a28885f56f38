"""LASA: every layer chooses its own clients."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import hardshrink

from thistle.strategies.aggregators.block import Aggregate, require, require_block, require_weights
from thistle.strategies.aggregators.gram import norms
from thistle.strategies.aggregators.lengths import length, shares_of, shortened
from thistle.strategies.aggregators.numpy_input import accepts_numpy

CHUNK = 2**17
"""Values of a row at a time: they stay in the cache."""


class Layer(NamedTuple):
    """An array of the model in the flat vector."""

    start: int
    stop: int
    sparse: bool
    """Whether its small values are set to 0; the paper's code does that to matrices and convolutions."""


@accepts_numpy
def lasa(
    updates: Tensor,
    layers: Sequence[Layer],
    sparsity: float = 0.3,
    norm_bound: float = 2.0,
    sign_bound: float = 1.0,
    weights: Tensor | None = None,
) -> Aggregate:
    """In every layer the mean of the clients with a usual length and sign balance there (Xu et al. 2025).

    Updates are shortened to the (lower) median length, and a part `sparsity` of each one's values in sparse layers, the
    smallest, is set to 0. Usual: |value − median| / standard deviation below the bound. The balance is
    ½(1 + (1 − sparsity)·(#₊ − #₋)/(#₊ + #₋)). Nobody is usual in a layer: all are. Scores: the part of the values, by
    layer, in which a client was kept; weights as for rules that work coordinate by coordinate.

    Cost: n selections of a quantile among d, two passes chunk by chunk.
    """
    n, d = require_block(updates)
    covered = [0, *(layer.stop for layer in layers)] == [*(layer.start for layer in layers), d]
    require(covered and 0 <= sparsity < 1, f"LASA needs layers that cover the vector, 0 ≤ sparsity < 1; got {sparsity}")
    prior, lengths = require_weights(weights, n, updates), norms(updates)
    scale = shortened(lengths, lengths.median())
    least = smallest_kept(updates, layers, sparsity)
    vector = updates.new_zeros(d)
    total, kept = torch.zeros(2, n, dtype=torch.float64)
    for layer in layers:
        usual = _usual(updates, layer, least, scale, sparsity, (norm_bound, sign_bound))
        shares = shares_of(usual, prior)
        for row in usual.nonzero().flatten().tolist():
            for columns, values in _sparse(updates[row], layer, least[row]):
                vector[columns].add_(values, alpha=float(shares[row] * scale[row]))
        part = (layer.stop - layer.start) / d
        total, kept = total + part * shares, kept + part * usual
    return Aggregate(vector, total, kept)


def smallest_kept(updates: Tensor, layers: Sequence[Layer], sparsity: float) -> list[float]:
    """For every client the least size of a value in sparse layers that is not set to 0."""
    chosen = [layer for layer in layers if layer.sparse]
    size = sum(layer.stop - layer.start for layer in chosen)
    gone = size - int(size * (1 - sparsity) + 1e-9)
    if not gone:
        return [0.0] * len(updates)
    sizes, found = updates.new_empty(size), []
    for row in updates:
        torch.cat([row[layer.start : layer.stop] for layer in chosen], out=sizes).abs_()
        sizes.numpy().partition(min(gone, size - 1))  # ten times as fast as torch's kthvalue
        found.append(float(sizes[min(gone, size - 1)]))
    return found


def _sparse(row: Tensor, layer: Layer, least: float) -> Iterator[tuple[slice, Tensor]]:
    """A client's values in a layer, small ones set to 0, chunk by chunk."""
    below = math.nextafter(least, 0.0) if row.dtype == torch.float64 else _next_below(least)
    for start in range(layer.start, layer.stop, CHUNK):
        columns = slice(start, min(start + CHUNK, layer.stop))
        values = row[columns]
        yield columns, hardshrink(values, below) if layer.sparse and least > 0 else values


def _next_below(value: float) -> float:
    return float(np.nextafter(np.float32(value), np.float32(0)))


def _usual(
    updates: Tensor, layer: Layer, least: Sequence[float], scale: Tensor, sparsity: float, bounds: tuple[float, float]
) -> Tensor:
    """n booleans: whose length and signs are usual in this layer; all of them if no one's are."""
    squares, balance, signed = torch.zeros(3, len(updates), dtype=torch.float64)
    for row, update in enumerate(updates):
        for _, values in _sparse(update, layer, least[row]):
            squares[row] += length(values) ** 2
            signs = values.sign()
            balance[row] += float(signs.sum())
            signed[row] += float(torch.dot(signs, signs))  # whole numbers below 2²⁴ are exact
    balance = 0.5 * (1 + (1 - sparsity) * balance / signed.clamp(min=1))
    usual = (from_median(squares.sqrt() * scale) < bounds[0]) & (from_median(balance) < bounds[1])
    return usual if bool(usual.any()) else torch.ones_like(usual)


def from_median(values: Tensor) -> Tensor:
    """|v − median| in standard deviations; 0 where all are equal."""
    spread = values.std(correction=0)
    return (values - torch.quantile(values, 0.5)).abs() / spread if float(spread) > 0 else torch.zeros_like(values)
