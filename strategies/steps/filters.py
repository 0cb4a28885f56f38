"""Filters: which updates are worth aggregating, judged by the gradient g0 of the server's own data.

Each says what it judges by, `scores(round, updates)`, and how far it can be led: `worst(round, honest, copies, target)`
are `copies` equal updates that attackers can send and that pass beside the honest ones; no other update that passes
goes farther along `target`. Attackers with full knowledge use it, to find out what a filter is worth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from thistle.strategies.aggregators import inner_products
from thistle.strategies.aggregators.clipping import unit
from thistle.strategies.rounds import Progress, Round
from thistle.strategies.steps.compass import corrected
from thistle.strategies.steps.share import MaliciousShare
from thistle.strategies.steps.words import against_cut

HALF = 0.5
"""The share that attackers assume θ "auto" to drop."""
SLACK = 1e-3
"""How far inside of the bound they stay: scores are rounded, and equal ones are dropped by client id."""


@dataclass(frozen=True)
class AngleFilter:
    """AF_α of RoFSL: keep where cos(Δ_i, −g0) ≥ α. Zero-norm updates have cosine 0."""

    angle: float
    stage: ClassVar[str] = "filter"

    def __call__(self, round: Round, progress: Progress) -> Progress:
        cosines = self.scores(round, progress.updates)
        return _drop(progress, cosines < self.angle, "angle", cosines, self.angle)

    def scores(self, round: Round, updates: Tensor) -> Tensor:
        """cos(Δ_i, −g0)."""
        dots, squares = inner_products(updates, round.gradient)
        lengths = squares.sqrt() * torch.linalg.vector_norm(round.gradient, dtype=torch.float64)
        return torch.where(lengths > 0, -dots / lengths, 0.0).clamp(-1.0, 1.0)

    def worst(self, round: Round, honest: Tensor, copies: int, target: Tensor) -> list[Tensor]:
        """On the cone's surface, of the honest updates' median length."""
        return [honest.norm(dim=1).median() * _in_cone(-round.gradient, self.angle, target)]


def loss_scores(updates: Tensor, gradient: Tensor, rho: float, usual: float = 0.0) -> Tensor:
    """s_i = −⟨Δ_i, g0⟩ − ρ(‖Δ_i‖ − L)²: what the server's loss gains by the step, less its length beyond `usual`, L."""
    dots, squares = inner_products(updates, gradient)
    return -dots - rho * (squares if not usual else (squares.sqrt() - usual) ** 2)


def part_of(share: float, n: int) -> int:
    """⌊share·n⌋ as written: 0.29 of 100 is 29, though the product of the floats is a little less."""
    return int(share * n + 1e-9)


@dataclass(frozen=True)
class LossFilter:
    """LF_{ρ,θ} of RoFSL: drop the ⌊θn⌋ lowest scores, ties by client id; θ "auto": see share.py."""

    rho: float
    theta: float | MaliciousShare
    compass: str = "gradient"
    """Or `corrected`: without what server learning has done to it (see compass.py)."""
    length: str = "short"
    """What is best: to be short, or to be as long as the `server` step that the clients' rate gives."""
    stage: ClassVar[str] = "filter"

    def __call__(self, round: Round, progress: Progress) -> Progress:
        scores = self.scores(round, progress.updates)
        if isinstance(self.theta, MaliciousShare):
            malicious, why, progress = self.theta.judge(round, progress.score(scores), scores)
            return _report(progress.drop(malicious, "loss", why))
        order, count = torch.argsort(scores, stable=True), part_of(self.theta, len(scores))
        lowest = torch.zeros(len(scores), dtype=torch.bool)
        lowest[order[:count]] = True
        cut = float(scores[order[count]]) if 0 < count < len(scores) else math.nan
        return _drop(progress, lowest, "loss", scores, cut)

    def scores(self, round: Round, updates: Tensor) -> Tensor:
        """s_i = −⟨Δ_i, g⟩ − ρ(‖Δ_i‖ − L)²."""
        return loss_scores(updates, self._direction(round), self.rho, self._usual(round))

    def _direction(self, round: Round) -> Tensor:
        return corrected(round) if self.compass == "corrected" else round.gradient

    def _usual(self, round: Round) -> float:
        """L: 0, or the length of what the server would learn at the clients' rate."""
        if self.length == "short":
            return 0.0
        assert round.server is not None, "checked when the strategy was built"
        return float((round.server.learn(round.model, round.lr) - round.model).norm())

    def worst(self, round: Round, honest: Tensor, copies: int, target: Tensor) -> list[Tensor]:
        """s(v) ≥ c is a ball around a = −g0/2ρ of radius R = √(‖a‖² − c/ρ): a + R·target/‖target‖.

        c is the honest score to beat so that one copy passes, half of them do, and as many as can. Nothing of the kind
        is known where L is not 0.
        """
        if self.length != "short":
            return []
        scores = self.scores(round, honest).sort().values
        theta = self.theta if isinstance(self.theta, float | int) else HALF
        dropped = part_of(theta, len(honest) + copies)
        fewest, most = max(1, dropped - copies + 1), min(dropped, len(honest))
        below = sorted({fewest, (fewest + most) // 2, most}) if fewest <= most else []
        return [
            _in_ball(-self._direction(round), self.rho, float(scores[count - 1]), honest, target) for count in below
        ]


@dataclass(frozen=True)
class ZenoFilter:
    """Zeno++ in rounds: updates rescaled to η‖g0‖, kept where −⟨Δ, g0⟩ − ρ‖Δ‖² ≥ −ε, ε = `epsilon`·η‖g0‖²."""

    rho: float
    epsilon: float
    stage: ClassVar[str] = "filter"

    def __call__(self, round: Round, progress: Progress) -> Progress:
        scores, scale, length = self._judge(round, progress.updates)
        rescaled = progress.updates.mul_(scale.to(progress.updates.dtype)[:, None])
        spectra = progress.spectra and progress.spectra.rescaled(scale)
        bound = float(-self.epsilon * round.lr * length**2)
        return _drop(replace(progress, updates=rescaled, spectra=spectra), scores < bound, "zeno", scores, bound)

    def _judge(self, round: Round, updates: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The scores, what the updates are multiplied by, and ‖g0‖."""
        dots, squares = inner_products(updates, round.gradient)
        norms = squares.sqrt()
        length = torch.linalg.vector_norm(round.gradient, dtype=torch.float64)
        scale = torch.where(norms > 0, round.lr * length / norms, 0.0)
        return -dots * scale - self.rho * (norms * scale) ** 2, scale, length

    def scores(self, round: Round, updates: Tensor) -> Tensor:
        """−⟨Δ, g0⟩ − ρ‖Δ‖² of the rescaled updates."""
        return self._judge(round, updates)[0]

    def worst(self, round: Round, honest: Tensor, copies: int, target: Tensor) -> list[Tensor]:
        """All lengths are the same here: what passes is the cone cos(v, −g0) ≥ ρη − ε."""
        cosine = min(1.0, max(-1.0, self.rho * round.lr - self.epsilon))
        return [round.lr * round.gradient.norm() * _in_cone(-round.gradient, cosine, target)]


def _drop(progress: Progress, rows: Tensor, step: str, scores: Tensor, cut: float) -> Progress:
    """Without these rows, whose scores are below the cut (or at it, where only some of the equals could stay)."""

    def why(row: int) -> str:
        return against_cut(float(scores[row]), cut)

    return _report(progress.score(scores, cut).drop(rows, step, why))


def _in_cone(axis: Tensor, cosine: float, target: Tensor) -> Tensor:
    """The unit vector that goes farthest along `target` of those with at least this cosine with the axis."""
    d, t = unit(axis), unit(target)
    m = max(cosine, float(t @ d))
    return m * d + max(0.0, 1 - m**2) ** 0.5 * unit(t - (t @ d) * d)


def _in_ball(descent: Tensor, rho: float, least: float, honest: Tensor, target: Tensor) -> Tensor:
    """The v with ⟨v, −g0⟩ − ρ‖v‖² ≥ `least` that goes farthest along `target`; ρ = 0: of the honest median length."""
    if rho > 0:
        centre = descent / (2 * rho)
        radius = max(0.0, float(centre @ centre) - least / rho) ** 0.5
        return centre + (1 - SLACK) * radius * unit(target)
    length = float(honest.norm(dim=1).median())
    cosine = (1 + SLACK) * least / max(length * float(descent.norm()), torch.finfo(descent.dtype).tiny)
    return length * _in_cone(descent, min(1.0, max(-1.0, cosine)), target)


def _report(progress: Progress) -> Progress:
    """`filter.empty` 1: nobody passed, learning depends on the server's data alone this round."""
    return progress.measure(filter_empty=float(not progress.kept.any()))
