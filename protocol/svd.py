"""The singular value decomposition of a layer, as both sides use it. Pure torch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

NEGLIGIBLE = 1e-7
"""Singular values below this part of the largest are rounding: float32 does not hold them."""
STEEP = 1e-4
"""A Gram matrix squares the spectrum: below this part of the largest, its eigenvectors are looked at twice."""
ORTHONORMAL = 1e-4
"""How far VᵀV may be from the identity before the slow way is taken."""


class Factors(NamedTuple):
    """A matrix as U·diag(σ)·Vᵀ: columns of U and V orthonormal, σ descending, all above zero."""

    u: Tensor
    sigma: Tensor
    v: Tensor

    def product(self) -> Tensor:
        """The matrix itself."""
        return (self.u * self.sigma) @ self.v.T

    def polar(self) -> Tensor:
        """UVᵀ: the matrix with every singular value 1. It does not change when a pair (u, v) changes its sign."""
        return self.u @ self.v.T


def thin_svd(matrix: Tensor, rank: int) -> Factors:
    """The `rank` largest singular triples in float64; fewer where the others are negligible.

    Through the eigenvectors of the smaller side's Gram matrix, which costs a fraction of torch.linalg.svd for wide
    layers (128×4096: 9 ms instead of 48; 512×4608: 0.15 s instead of 1.4); where small singular values spoil the
    orthogonality, through that.
    """
    values = matrix.detach().to(torch.float64)
    if not bool(torch.isfinite(values).all()):
        raise ValueError("the update is not finite")
    if values.shape[0] > values.shape[1]:
        u, sigma, v = thin_svd(values.T, rank)
        return Factors(v, sigma, u)
    return _through_gram(values, rank) or _directly(values, rank)


def _through_gram(wide: Tensor, rank: int) -> Factors | None:
    squares, vectors = torch.linalg.eigh(wide @ wide.T)
    rough = squares.flip(0)[:rank].clamp(min=0).sqrt()
    kept = int((rough > NEGLIGIBLE * rough[0]).sum())
    u = vectors.flip(1)[:, :kept]
    projected = u.T @ wide
    sigma, order = torch.linalg.vector_norm(projected, dim=1).sort(descending=True, stable=True)
    v = (projected[order] / sigma[:, None]).T
    if kept and float(sigma[-1]) < STEEP * float(sigma[0]):
        error = v.T @ v - torch.eye(kept, dtype=v.dtype, device=v.device)
        if not float(error.abs().max()) <= ORTHONORMAL:
            return None
    return Factors(u[:, order], sigma, v)


def _directly(wide: Tensor, rank: int) -> Factors:
    u, sigma, vt = torch.linalg.svd(wide, full_matrices=False)
    kept = min(rank, int((sigma > NEGLIGIBLE * sigma[0]).sum()))
    return Factors(u[:, :kept], sigma[:kept], vt[:kept].T)
