"""Updates seen through their singular values: cut to a rank, and decomposed for comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Literal

import torch
from torch import Tensor

from thistle.protocol.svd import Factors, thin_svd
from thistle.strategies.aggregators.block import require, require_block

Matrix = tuple[int, int, int]
"""A layer in the flat vector: where it starts, its rows, its columns."""
Sees = Literal["directions", "vectors"]
"""By what two updates are compared: their layers' polar factors, or the singular vectors one by one."""


@dataclass(frozen=True, eq=False)
class Spectra:
    """What n updates look like.

    `directions`: n x D, float32. By directions, D is the number of entries in matrix layers: each layer's polar factor
    U_k V_kᵀ, divided by √(k·L), so that the inner product of two rows is the mean over the L layers of ⟨P_i, P_j⟩ /
    √(k_i k_j). By vectors, each layer's U_k and V_k, divided by √2 and padded by zeros to full rank: the inner product
    is the sum over the layers of ½(tr U_iᵀU_j + tr V_iᵀV_j).
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


def decompose(
    updates: Tensor, matrices: Sequence[Matrix], ranks: Tensor, write: Tensor, sees: Sees = "directions"
) -> Spectra:
    """The spectra of all updates at rank `ranks`[i, ℓ]; a layer with `write`[i, ℓ] is cut to it, in place.

    Cost: n·L thin SVDs, and memory for a second block of updates (by vectors: at most two).
    """
    wanted = _checked(updates, matrices, ranks)
    widths = [_width(matrix, sees) for matrix in matrices]
    total = sum(widths)
    directions = torch.zeros(len(updates), total)
    values = torch.zeros(len(updates), sum(min(matrix[1:]) for matrix in matrices), dtype=torch.float64)
    for i, row in enumerate(updates):
        entry = place = 0
        for layer_number, matrix in enumerate(matrices):
            layer = _layer(row, matrix)
            found = thin_svd(layer, wanted[i][layer_number])
            room = directions[i, entry : entry + widths[layer_number]]
            if sees == "vectors":
                _write_vectors(room, found, min(layer.shape))
            else:
                _write_direction(room, found, len(matrices))
            values[i, place : place + len(found.sigma)] = found.sigma
            if bool(write[i, layer_number]):
                layer.copy_(found.product())
            entry, place = entry + widths[layer_number], place + min(layer.shape)
    return Spectra(directions, values)


def _width(matrix: Matrix, sees: Sees) -> int:
    _, rows, columns = matrix
    return rows * columns if sees == "directions" else min(rows, columns) * (rows + columns)


def _write_vectors(out: Tensor, found: Factors, full: int) -> None:
    """U_k and V_k, one vector after the other, so that those of one place meet in an inner product."""
    pairs = torch.cat([found.u, found.v]).T  # k x (rows + columns)
    out.view(full, -1)[: len(pairs)] = pairs / sqrt(2)


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
