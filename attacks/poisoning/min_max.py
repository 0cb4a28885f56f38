"""As far from the mean as the panel's own spread allows, in one direction: the malicious update hides among others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from thistle.attacks.poisoning.parts import ByColluders, Facts
from thistle.attacks.registry import attack, setting

PAPER = "Shejwalkar & Houmansadr 2021"
DOUBLINGS, HALVINGS = 20, 40
Perturbation = Literal["std", "unit", "sign"]
DIRECTIONS = "p, the direction away from the mean: −σ (`std`), −μ/‖μ‖ (`unit`) or −sign μ (`sign`)"


@attack("min-max", PAPER, knows="colluders")
class MinMax(ByColluders):
    """μ + γp, no farther from any update than two are apart.

    The largest γ for which max_i ‖v − u_i‖ ≤ max_ij ‖u_i − u_j‖.
    """

    perturbation: Perturbation = setting(DIRECTIONS, default="std", tried=("std", "unit", "sign"))

    def __call__(self, panel: Tensor, facts: Facts) -> Tensor:
        return _farthest(panel, _direction(panel, self.perturbation), lambda squared: squared.amax(-1))


@attack("min-sum", PAPER, knows="colluders")
class MinSum(ByColluders):
    """μ + γp, no farther from all updates than one of them is.

    The largest γ for which Σ_i ‖v − u_i‖² ≤ max_i Σ_j ‖u_i − u_j‖².
    """

    perturbation: Perturbation = setting(DIRECTIONS, default="std", tried=("std", "unit", "sign"))

    def __call__(self, panel: Tensor, facts: Facts) -> Tensor:
        return _farthest(panel, _direction(panel, self.perturbation), lambda squared: squared.sum(-1))


def _direction(panel: Tensor, perturbation: str) -> Tensor:
    mean = panel.mean(0)
    if perturbation == "unit":
        return -mean / mean.norm().clamp_min(torch.finfo(mean.dtype).tiny)
    return -mean.sign() if perturbation == "sign" else -panel.std(0, correction=0)


def _farthest(panel: Tensor, p: Tensor, spread: Callable[[Tensor], Tensor]) -> Tensor:
    """μ + γp with the largest γ at which `spread` of the squared distances to the panel is within the panel's own.

    ‖μ + γp − u_i‖² = ‖μ − u_i‖² + 2γ⟨p, μ − u_i⟩ + γ²‖p‖²: after one pass over the panel γ is found on k numbers.
    """
    mean = panel.mean(0)
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
