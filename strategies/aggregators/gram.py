"""Inner products of n updates: one pass over the data, after which most rules work on an n x n matrix."""

from __future__ import annotations

import torch
from torch import Tensor

from thistle.strategies.aggregators.block import require, require_block, require_finite

CHUNK_VALUES = 2**19  # 2 MiB of float32 at a time: a core's share of the caches
FAR = 16.0  # ‖Δ‖² may exceed a squared distance this many times (float32 then still gives it to about 1e-6)
PASSES = 8  # each recentring shrinks the radius at least ninefold, so one is the rule and three are rare
SMALL = 1e-20  # squares of smaller norms come near float32's underflow


def gram(updates: Tensor, chunk: int | None = None, *, extra: Tensor | None = None, centred: bool = True) -> Tensor:
    """The n x n matrix G_ij = ⟨Δ_i - c, Δ_j - c⟩, float64; with `extra` (a vector of d values) as row n+1.

    Products of float32 blocks of `chunk` columns, summed in float64 (Gram products in float64 cost three times more).
    Cancellation: ‖Δ_i - Δ_j‖² from G loses what ‖Δ_i - c‖² is larger, so c must lie among the bulk of the rows.
    The mean does not when one row is huge. Here c = 0 at first; G itself shows whether that was good enough, by the
    row with the smallest radius (distance to its ⌊n/2⌋-th neighbour): where its norm is more than 4 radii, c becomes
    that row, and the pass is repeated. `centred=False`: c = 0, as cosines want it.
    All values finite up to 1e38: a block whose squares overflow or vanish in float32 is redone in float64.

    Cost: 2n²d operations (arithmetic is the limit from n ≈ 10 on); memory n² and one chunk.
    """
    n, d = require_block(updates)
    if extra is not None:
        require(tuple(extra.shape) == (d,), f"extra must have {d} values; got shape {tuple(extra.shape)}")
    width = min(d, chunk or max(2048, CHUNK_VALUES // n))
    products = _products(updates, extra, None, width)
    for _ in range(PASSES if centred and n > 1 else 0):
        radius = squared_distances(products).sort(dim=1).values[:, len(products) // 2]
        middle = int(radius.argmin())
        if products[middle, middle] <= FAR * radius[middle]:
            break
        row = updates[middle] if extra is None or middle < n else extra
        products = _products(updates, extra, row, width)
    return products


def _products(updates: Tensor, extra: Tensor | None, centre: Tensor | None, width: int) -> Tensor:
    products = _accumulate(updates, extra, centre, width, updates.dtype)
    if not (SMALL < products.diagonal().max() < float("inf") and torch.isfinite(products).all()):
        require_finite(updates)
        require(extra is None or bool(torch.isfinite(extra).all()), "the extra row holds NaN or Inf")
        products = _accumulate(updates, extra, centre, width, torch.float64)
    return products


def _accumulate(updates: Tensor, extra: Tensor | None, centre: Tensor | None, width: int, dtype: torch.dtype) -> Tensor:
    n, d = updates.shape
    rows = n if extra is None else n + 1
    total = torch.zeros(rows, rows, dtype=torch.float64, device=updates.device)
    part = torch.empty(rows, rows, dtype=dtype, device=updates.device)
    as_it_is = extra is None and centre is None and dtype == updates.dtype
    scratch = torch.empty(0 if as_it_is else rows, width, dtype=dtype, device=updates.device)
    for start in range(0, d, width):
        columns = slice(start, min(start + width, d))
        block = updates[:, columns]
        if not as_it_is:
            block = scratch[:, : block.shape[1]]
            if centre is None:
                block[:n] = updates[:, columns]
            else:
                torch.sub(updates[:, columns], centre[columns], out=block[:n])
            if extra is not None:
                block[n] = extra[columns] if centre is None else extra[columns] - centre[columns]
        total += torch.mm(block, block.T, out=part)
    return (total + total.T) / 2


def squared_distances(products: Tensor) -> Tensor:
    """‖Δ_i - Δ_j‖² from a Gram matrix, n x n float64, never negative, zero on the diagonal. Cost n²."""
    norms = products.diagonal()
    return (norms[:, None] + norms[None, :] - 2 * products).clamp_(min=0).fill_diagonal_(0)


def distances_to(products: Tensor, weights: Tensor) -> Tensor:
    """‖z - Δ_i‖ for z = Σ w_i Δ_i, Σ w_i = 1: the root of wᵀGw - 2(Gw)_i + G_ii. Cost n²."""
    projected = products @ weights
    return (weights @ projected - 2 * projected + products.diagonal()).clamp_(min=0).sqrt_()


def mixed(products: Tensor, mixing: Tensor | None) -> Tensor:
    """The Gram matrix of the mixed rows, MGMᵀ (M's rows sum to 1, so the centre stays what it was). Cost n³."""
    return products if mixing is None else mixing @ products @ mixing.T


def inner_products(updates: Tensor, reference: Tensor) -> tuple[Tensor, Tensor]:
    """⟨Δ_i, r⟩ and ‖Δ_i‖² for every row, float64: what angle and loss filters, Zeno and FLTrust score by.

    One pass, limited by memory bandwidth: about 1.5 times a mean. Redone in float64 where float32 overflows, or
    where a row is so small that its squares vanish.
    """
    n, d = require_block(updates)
    require(tuple(reference.shape) == (d,), f"the reference must have {d} values; got shape {tuple(reference.shape)}")
    for dtype in (updates.dtype, torch.float64):
        dots = torch.zeros(n, dtype=torch.float64, device=updates.device)
        squares = torch.zeros_like(dots)
        width = max(2048, CHUNK_VALUES // n)
        for start in range(0, d, width):
            values = updates[:, start : start + width].to(dtype)
            dots += torch.mv(values, reference[start : start + width].to(dtype))
            squares += torch.linalg.vector_norm(values, dim=1).double().square_()
        vanishing = bool(((squares > 0) & (squares < d * torch.finfo(torch.float32).tiny)).any())
        if torch.isfinite(dots.sum() + squares.sum()) and not vanishing:
            break
        require_finite(updates)
        require(bool(torch.isfinite(reference).all()), "the reference holds NaN or Inf")
    return dots, squares


def norms(updates: Tensor) -> Tensor:
    """‖Δ_i‖ for every row, float64. One pass; rows whose squares overflow or vanish in float32 are redone alone."""
    require_block(updates)
    found = torch.linalg.vector_norm(updates, dim=1).double()
    for row in (~((found > 1e-15) & (found < 1e18))).nonzero().flatten().tolist():
        found[row] = torch.linalg.vector_norm(updates[row], dtype=torch.float64)
    if not torch.isfinite(found.sum()):
        require_finite(updates)
    return found
