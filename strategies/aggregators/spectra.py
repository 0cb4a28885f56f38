"""Updates seen through their singular values: cut to a rank, and decomposed for comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import sqrt

import torch
from torch import Tensor

from thistle.protocol.svd import Factors, thin_svd
from thistle.strategies.aggregators.block import require, require_block

Matrix = tuple[int, int, int]
"""A layer in the flat vector: where it starts, its rows, its columns."""


@dataclass(frozen=True, eq=False)
class Spectra:
    """What n updates look like.

    `directions`: n x D, float32, D the number of entries in matrix layers. Each layer's polar factor U_k V_kᵀ, divided
    by √(k·L), so that the inner product of two rows is the mean over the L layers of ⟨P_i, P_j⟩ / √(k_i k_j).
    `values`: n x K, float64: the singular values of all layers, each layer's padded by zeros to its full rank.
    """

    directions: Tensor
    values: Tensor

    def rescaled(self, factors: Tensor) -> Spectra:
        """After each update was multiplied by a number of 0 or more."""
        return replace(self, values=self.values * factors[:, None].to(self.values.dtype))

    def rows(self, kept: Tensor) -> Spectra:
        """Those of some clients; no copy where it is all of them."""
        return self if bool(kept.all()) else Spectra(self.directions[kept], self.values[kept])


def truncate(updates: Tensor, matrices: Sequence[Matrix], ranks: Tensor) -> None:
    """Cut layer ℓ of update i to rank `ranks`[i, ℓ], in place; 0: leave it as it is. One thin SVD each."""
    for row, wanted in zip(updates, _checked(updates, matrices, ranks), strict=True):
        for matrix, rank in zip(matrices, wanted, strict=True):
            layer = _layer(row, matrix)
            if 0 < rank < min(layer.shape):
                layer.copy_(thin_svd(layer, rank).product())


def decompose(updates: Tensor, matrices: Sequence[Matrix], ranks: Tensor, write: Tensor) -> Spectra:
    """The spectra of all updates at rank `ranks`[i, ℓ]; a layer with `write`[i, ℓ] is cut to it, in place.

    Cost: n·L thin SVDs, and memory for a second block of updates.
    """
    wanted = _checked(updates, matrices, ranks)
    total = sum(rows * columns for _, rows, columns in matrices)
    directions = torch.zeros(len(updates), total)
    values = torch.zeros(len(updates), sum(min(matrix[1:]) for matrix in matrices), dtype=torch.float64)
    for i, row in enumerate(updates):
        entry = place = 0
        for layer_number, matrix in enumerate(matrices):
            layer = _layer(row, matrix)
            found = thin_svd(layer, wanted[i][layer_number])
            _write_direction(directions[i, entry : entry + layer.numel()], found, len(matrices))
            values[i, place : place + len(found.sigma)] = found.sigma
            if bool(write[i, layer_number]):
                layer.copy_(found.product())
            entry, place = entry + layer.numel(), place + min(layer.shape)
    return Spectra(directions, values)


def _write_direction(out: Tensor, found: Factors, layers: int) -> None:
    rank = len(found.sigma)
    if rank:  # a layer that did not move has no direction
        out.copy_(found.polar().reshape(-1).div_(sqrt(rank * layers)))


def _layer(row: Tensor, matrix: Matrix) -> Tensor:
    start, rows, columns = matrix
    return row[start : start + rows * columns].view(rows, columns)


def _checked(updates: Tensor, matrices: Sequence[Matrix], ranks: Tensor) -> list[list[int]]:
    n, _ = require_block(updates)
    shape = (n, len(matrices))
    require(tuple(ranks.shape) == shape, f"ranks must be {shape}; got shape {tuple(ranks.shape)}")
    wanted: list[list[int]] = ranks.tolist()
    return wanted
