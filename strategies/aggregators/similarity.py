"""DSVD-FL: weights by how much each update has in common with the others."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from thistle.strategies.aggregators.block import require, require_block
from thistle.strategies.aggregators.gram import gram, norms, squared_distances
from thistle.strategies.aggregators.spectra import Spectra

EVEN = (0.34, 0.33, 0.33)
"""α where there is nothing to adapt it to."""
CLOSEST = 1e-3
"""The least part of the variance that a split is assumed to leave, so that no term outweighs all others."""


def similarities(updates: Tensor, spectra: Spectra, relative: bool) -> Tensor:
    """S_v, S_s and S_l of every pair of clients: 3 x n x n, float64 (DSVD-FL, eq. 5).

    S_s = −‖σ_i − σ_j‖ / c_s; S_l = −‖Δ_i − Δ_j‖ / c_l. `relative`: made well defined. Spectra by directions, S_v the
    mean over layers of ⟨P_i, P_j⟩ / √(k_i k_j), P = U_k V_kᵀ; c the median of the norms ‖σ_i‖, resp. ‖Δ_i‖ (1 where
    that is 0). Otherwise to the letter: spectra by vectors, S_v = ½(tr U_iᵀU_j + tr V_iᵀV_j), added up over layers, and
    c = 1.

    Cost: two Gram passes (2n²d operations each); the SVDs were made before.
    """
    n, _ = require_block(updates)
    require(len(spectra.values) == n, f"spectra of {len(spectra.values)} clients, updates of {n}")
    alignment = gram(spectra.directions, centred=False) if spectra.directions.shape[1] else torch.zeros(n, n).double()
    values = torch.cdist(spectra.values, spectra.values, compute_mode="donot_use_mm_for_euclid_dist")
    whole = squared_distances(gram(updates)).sqrt()
    if relative:
        values = values / _typical(torch.linalg.vector_norm(spectra.values, dim=1))
        whole = whole / _typical(norms(updates))
        alignment = alignment.clamp(-1.0, 1.0)
    return torch.stack([alignment, -values, -whole])


def _typical(norms: Tensor) -> Tensor:
    median = torch.quantile(norms, 0.5)
    return torch.where(median > 0, median, 1.0)


def mean_similarities(pairs: Tensor) -> Tensor:
    """Each term's mean over j ≠ i: 3 x n. A single client has 0."""
    n = pairs.shape[-1]
    own = torch.diagonal(pairs, dim1=1, dim2=2)
    return (pairs.sum(dim=2) - own) / max(1, n - 1)


def similarity_weights(terms: Tensor, alpha: Sequence[float] | Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """λ = α₁ λ_v + α₂ λ_s + α₃ λ_l, and softmax(λ / T), both n values (eqs. 6 and 7). Never NaN, never all zero."""
    require(temperature > 0, f"the temperature must be above 0; got {temperature}")
    scores = torch.as_tensor(alpha, dtype=terms.dtype) @ terms
    return scores, torch.softmax(scores / temperature, dim=0)  # which subtracts the maximum


def adapted_alpha(terms: Tensor) -> Tensor:
    """α for this round, by what separates the clients best: α_t ∝ F_t, F = between / within variance.

    Each term's λ are sorted and cut in two where the cut explains most of their variance (Otsu), the lower part being
    at most half of the clients: unlike the others are few. A term in which all agree gets nothing; all do: (.34, .33,
    .33). Beyond the paper (its future work). It depends neither on the terms' units nor on the clients' order. Cost
    n·log n.
    """
    n = terms.shape[1]
    if n < 3:
        return torch.tensor(EVEN, dtype=terms.dtype)
    ratio = torch.stack([_explained(term) for term in terms])
    odds = ratio / (1 - ratio).clamp(min=CLOSEST)
    return odds / odds.sum() if float(odds.sum()) > 0 else torch.tensor(EVEN, dtype=terms.dtype)


def _explained(term: Tensor) -> Tensor:
    """The largest part of the variance explained by separating the k lowest, k ≤ n/2."""
    centred = (term - term.mean()).sort().values
    n, total = len(term), (centred**2).sum()
    if float(total) <= n * (1e-9 * float(term.abs().max())) ** 2:  # equal, but for rounding
        return torch.zeros((), dtype=term.dtype)
    k = torch.arange(1, n // 2 + 1, dtype=term.dtype)
    below = centred.cumsum(0)[: n // 2]  # the sum of the k lowest; that of the others is its negative
    return (below**2 * n / (k * (n - k))).max() / total
