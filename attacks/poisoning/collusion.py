"""Attacks by colluders: each turns a panel of honest trainings (k × d, one update a row) into what all of them send.

μ is the panel's mean, σ its standard deviation, coordinate by coordinate (divided by k: one row has σ = 0).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor

Collusion = Callable[[Tensor], Tensor]

DOUBLINGS, HALVINGS = 20, 40


def alie_z(n: int, f: int) -> float:
    """How far f of n clients may go together: z = Φ⁻¹((n − f − s)/(n − f)), s = ⌊n/2 + 1⌋ − f honest supporters.

    At least 0 (too few attackers to win anybody over) and at most Φ⁻¹(0.999) (a majority needs no supporters).
    """
    honest, supporters = n - f, n // 2 + 1 - f
    quantile = (honest - supporters) / honest if honest > 0 else 1.0
    return NormalDist().inv_cdf(min(max(quantile, 0.5), 0.999))


@dataclass(frozen=True)
class Alie:
    """μ − zσ (Baruch et al. 2019)."""

    z: float

    def __call__(self, panel: Tensor) -> Tensor:
        return panel.mean(0) - self.z * panel.std(0, correction=0)


@dataclass(frozen=True)
class Ipm:
    """−ε μ (Xie et al. 2020)."""

    epsilon: float

    def __call__(self, panel: Tensor) -> Tensor:
        return -self.epsilon * panel.mean(0)


@dataclass(frozen=True)
class MinMax:
    """μ + γp, p = −σ, with the largest γ for which max_i ‖v − u_i‖ ≤ max_ij ‖u_i − u_j‖."""

    def __call__(self, panel: Tensor) -> Tensor:
        return _farthest(panel, lambda squared: squared.amax(-1))


@dataclass(frozen=True)
class MinSum:
    """μ + γp, p = −σ, with the largest γ for which Σ_i ‖v − u_i‖² ≤ max_i Σ_j ‖u_i − u_j‖²."""

    def __call__(self, panel: Tensor) -> Tensor:
        return _farthest(panel, lambda squared: squared.sum(-1))


@dataclass(frozen=True)
class Mimic:
    """The update of the first client of the panel (Karimireddy et al. 2022)."""

    def __call__(self, panel: Tensor) -> Tensor:
        return panel[0].clone()


@dataclass(frozen=True)
class Adaptive:
    """For servers that check updates against a gradient g0 of their own: the most harmful one that passes.

    A loss or an angle filter keeps what has a large enough inner product with −g0. Colluders do not have g0, but
    honest clients descend too: d = μ/‖μ‖ stands for −g0/‖g0‖. Among the vectors of the panel's median norm r, so that
    no norm gives them away, with cos(v, d) ≥ m, this one goes farthest in the malicious direction p = −σ
    (−μ itself has nothing left once it may not point against d):

        v = r·(m d + √(1 − m²) q/‖q‖),      q = p − ⟨p, d⟩ d        (m at least cos(p, d))
    """

    margin: float

    def __call__(self, panel: Tensor) -> Tensor:
        mean, norm = panel.mean(0), panel.norm(dim=1).median()
        d, p = _unit(mean), _unit(-panel.std(0, correction=0))
        m = max(self.margin, float(p @ d))
        return norm * (m * d + max(0.0, 1 - m**2) ** 0.5 * _unit(p - (p @ d) * d))


def _unit(vector: Tensor) -> Tensor:
    return vector / vector.norm().clamp_min(torch.finfo(vector.dtype).tiny)


def _farthest(panel: Tensor, spread: Callable[[Tensor], Tensor]) -> Tensor:
    """μ + γp with the largest γ at which `spread` of the squared distances to the panel is within the panel's own.

    ‖μ + γp − u_i‖² = ‖μ − u_i‖² + 2γ⟨p, μ − u_i⟩ + γ²‖p‖²: after one pass over the panel γ is found on k numbers.
    """
    mean, p = panel.mean(0), -panel.std(0, correction=0)
    away = (mean - panel).double()
    bound = float(spread(torch.cdist(away, away, compute_mode="donot_use_mm_for_euclid_dist").square()).max())
    near, slope, curve = away.square().sum(1), away @ p.double(), p.double().square().sum()

    def within(gamma: float) -> bool:
        return float(spread(near + 2 * gamma * slope + gamma**2 * curve)) <= bound

    return mean + _largest(within) * p


def _largest(within: Callable[[float], bool]) -> float:
    """The largest γ ≥ 0 (0: none) by bisection, to within 2⁻⁴⁰ of its size; `within` is true up to it, then false."""
    high = 1.0
    for _ in range(DOUBLINGS):
        if not within(high):
            break
        high *= 2
    low = 0.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if within(middle) else (low, middle)
    return low
