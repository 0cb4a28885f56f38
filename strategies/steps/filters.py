"""Filters: which updates are worth aggregating, judged by the gradient g0 of the server's own data."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from thistle.strategies.aggregators import inner_products
from thistle.strategies.rounds import Progress, Round
from thistle.strategies.steps.share import MaliciousShare


@dataclass(frozen=True)
class AngleFilter:
    """AF_α of RoFSL: keep where cos(Δ_i, −g0) ≥ α. Zero-norm updates have cosine 0."""

    angle: float
    stage: ClassVar[str] = "filter"

    def __call__(self, round: Round, progress: Progress) -> Progress:
        dots, squares = inner_products(progress.updates, round.gradient)
        lengths = squares.sqrt() * torch.linalg.vector_norm(round.gradient, dtype=torch.float64)
        cosines = torch.where(lengths > 0, -dots / lengths, 0.0).clamp(-1.0, 1.0)
        return _drop(progress, cosines < self.angle, "angle", cosines, self.angle)


def loss_scores(updates: Tensor, gradient: Tensor, rho: float) -> Tensor:
    """s_i = −⟨Δ_i, g0⟩ − ρ‖Δ_i‖²: what the server's loss gains by the step, less its length."""
    dots, squares = inner_products(updates, gradient)
    return -dots - rho * squares


def part_of(share: float, n: int) -> int:
    """⌊share·n⌋ as written: 0.29 of 100 is 29, though the product of the floats is a little less."""
    return int(share * n + 1e-9)


@dataclass(frozen=True)
class LossFilter:
    """LF_{ρ,θ} of RoFSL: drop the ⌊θn⌋ lowest scores, ties by client id; θ "auto": see share.py."""

    rho: float
    theta: float | MaliciousShare
    stage: ClassVar[str] = "filter"

    def __call__(self, round: Round, progress: Progress) -> Progress:
        scores = loss_scores(progress.updates, round.gradient, self.rho)
        if isinstance(self.theta, MaliciousShare):
            malicious, why, progress = self.theta.judge(round, progress.score(scores), scores)
            return _report(progress.drop(malicious, "loss", why))
        order, count = torch.argsort(scores, stable=True), part_of(self.theta, len(scores))
        lowest = torch.zeros(len(scores), dtype=torch.bool)
        lowest[order[:count]] = True
        cut = float(scores[order[count]]) if 0 < count < len(scores) else math.nan
        return _drop(progress, lowest, "loss", scores, cut)


@dataclass(frozen=True)
class ZenoFilter:
    """Zeno++ in rounds: updates rescaled to η‖g0‖, kept where −⟨Δ, g0⟩ − ρ‖Δ‖² ≥ −ε, ε = `epsilon`·η‖g0‖²."""

    rho: float
    epsilon: float
    stage: ClassVar[str] = "filter"

    def __call__(self, round: Round, progress: Progress) -> Progress:
        dots, squares = inner_products(progress.updates, round.gradient)
        norms = squares.sqrt()
        length = torch.linalg.vector_norm(round.gradient, dtype=torch.float64)
        scale = torch.where(norms > 0, round.lr * length / norms, 0.0)
        scores = -dots * scale - self.rho * (norms * scale) ** 2
        rescaled = progress.updates.mul_(scale.to(progress.updates.dtype)[:, None])
        spectra = progress.spectra and progress.spectra.rescaled(scale)
        bound = float(-self.epsilon * round.lr * length**2)
        return _drop(replace(progress, updates=rescaled, spectra=spectra), scores < bound, "zeno", scores, bound)


def _drop(progress: Progress, rows: Tensor, step: str, scores: Tensor, cut: float) -> Progress:
    """Without these rows, whose scores are below the cut (or at it, where only some of the equals could stay)."""

    def why(row: int) -> str:
        score, bound = _apart(float(scores[row]), cut)
        return f"score {score} {'at the cut' if score == bound else f'below the cut at {bound}'}"

    return _report(progress.score(scores, cut).drop(rows, step, why))


def _apart(*numbers: float) -> list[str]:
    """Numbers in words, with as many digits as tell them apart."""
    for digits in range(2, 18):
        words = [f"{one:.{digits}g}".replace("-", "−") for one in numbers]
        if len(set(words)) == len(set(numbers)):
            break
    return words


def _report(progress: Progress) -> Progress:
    """`filter.empty` 1: nobody passed, learning depends on the server's data alone this round."""
    return progress.measure(filter_empty=float(not progress.kept.any()))
