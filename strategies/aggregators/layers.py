"""LASA: every layer chooses its own clients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from thistle.strategies.aggregators.block import Aggregate, require, require_block, require_weights
from thistle.strategies.aggregators.lengths import lengths, shares_of, shortened
from thistle.strategies.aggregators.numpy_input import accepts_numpy

CHUNK_VALUES = 2**18


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
    prior, norms = require_weights(weights, n, updates), lengths(updates)
    scale = shortened(norms, norms.median())
    least = smallest_kept(updates, layers, sparsity)
    vector, total, kept = updates.new_empty(d), torch.zeros(n, dtype=torch.float64), torch.zeros(n, dtype=torch.float64)
    for layer in layers:
        usual = _usual(updates, layer, least, scale, sparsity, (norm_bound, sign_bound))
        shares = shares_of(usual, prior)
        factors = (shares * scale).to(updates.dtype)
        for columns, values in _masked(updates, layer, least):
            vector[columns] = factors @ values
        part = (layer.stop - layer.start) / d
        total, kept = total + part * shares, kept + part * usual
    return Aggregate(vector, total, kept)


def smallest_kept(updates: Tensor, layers: Sequence[Layer], sparsity: float) -> Tensor:
    """For every client the least size of a value in sparse layers that is not set to 0."""
    size = sum(layer.stop - layer.start for layer in layers if layer.sparse)
    gone = size - int(size * (1 - sparsity) + 1e-9)
    if not gone:
        return updates.new_zeros(len(updates))
    return torch.stack([_sizes(row, layers).kthvalue(min(gone + 1, size)).values for row in updates])


def _sizes(row: Tensor, layers: Sequence[Layer]) -> Tensor:
    return torch.cat([row[layer.start : layer.stop] for layer in layers if layer.sparse]).abs_()


def _masked(updates: Tensor, layer: Layer, least: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """The layer's values, small ones set to 0, chunk by chunk."""
    width = max(1, CHUNK_VALUES // len(updates))
    for start in range(layer.start, layer.stop, width):
        columns = slice(start, min(start + width, layer.stop))
        values = updates[:, columns]
        yield columns, values * (values.abs() >= least[:, None]) if layer.sparse else values


def _usual(
    updates: Tensor, layer: Layer, least: Tensor, scale: Tensor, sparsity: float, bounds: tuple[float, float]
) -> Tensor:
    """n booleans: whose length and signs are usual in this layer; all, where nobody's are."""
    squares, above, below = torch.zeros(3, len(updates), dtype=torch.float64)
    for _, values in _masked(updates, layer, least):
        squares += torch.linalg.vector_norm(values, dim=1).double() ** 2
        above += (values > 0).sum(dim=1)
        below += (values < 0).sum(dim=1)
    balance = 0.5 * (1 + (1 - sparsity) * (above - below) / (above + below).clamp(min=1))
    usual = (from_median(squares.sqrt() * scale) < bounds[0]) & (from_median(balance) < bounds[1])
    return usual if bool(usual.any()) else torch.ones_like(usual)


def from_median(values: Tensor) -> Tensor:
    """|v − median| in standard deviations; 0 where all are equal."""
    spread = values.std(correction=0)
    return (values - torch.quantile(values, 0.5)).abs() / spread if float(spread) > 0 else torch.zeros_like(values)
