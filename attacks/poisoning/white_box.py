"""The attack with full knowledge: the whole defence with its settings, data and state, and honest clients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from thistle.attacks.poisoning.adaptive import Adaptive
from thistle.attacks.poisoning.parts import Defence, Facts
from thistle.attacks.poisoning.search import USED, Searched, defence_of, within_reach
from thistle.attacks.registry import attack, setting
from thistle.experiments.settings import NonNegative
from thistle.strategies.aggregators.clipping import unit

LENGTHS = (0.3, 1.0, 3.0, 10.0)
"""At which directions are tried, in units of the panel's median norm."""
SHARES = (0.25, 0.5, 0.75)
"""Of the better one in a mixture of the best two."""
REFINED, WIDTH = 8, 3.0
"""Evaluations of the golden-section search, from a third of the best length to three times that."""
GOLDEN = (math.sqrt(5) - 1) / 2


@attack("white-box", knows="defence")
class WhiteBox(Searched):
    """What harms the experiment's own strategy most, found by trial.

    It knows who takes part in the round. With μ the mean of the honest updates and x_0 the first model, the f copies of
    v that all send maximise

        −⟨step(honest updates, f copies of v), μ/‖μ‖ + e (x_t − x_0)/‖x_t − x_0‖⟩

    where `step` is what the whole strategy makes of them (filters, weights, aggregation, clipping) before the server
    learns: against what honest clients learn now, and what was learnt so far. The search is deterministic, at most 51
    trials per round: the target's direction, −μ, −σ, −sign μ, the direction of `adaptive`, ±g0 and −μ without its part
    along g0 at four lengths each, the honest update that agrees least with μ, zero, what filters offer in closed form
    (`worst`, as it is and half as long), mixtures of the best two, and a golden-section search of its length.
    """

    undo: NonNegative = setting("e: the value of undoing what was learnt before this round", default=1.0)

    def tries_out(self) -> str:
        """All of what the server does."""
        return USED

    def __call__(self, panel: Tensor, facts: Facts) -> Tensor:
        defence = defence_of(facts)
        target = -unit(panel.mean(0)) - self.undo * unit(defence.learnt())
        search = _Search(defence, panel, facts.f, target)
        for vector in _first(defence, panel, facts, target):
            search.attempt(vector)
        for vector in search.mixtures():
            search.attempt(vector)
        search.refine()
        return search.best[0].vector


class _Tried(NamedTuple):
    harm: float
    vector: Tensor


@dataclass
class _Search:
    defence: Defence
    panel: Tensor
    copies: int
    target: Tensor
    """Where the model is to go."""
    best: list[_Tried] = field(default_factory=list)
    """The two best, of different directions."""

    def attempt(self, vector: Tensor) -> float:
        """How harmful it is; remembered if that is more than before."""
        vector = within_reach(vector, self.panel)
        harm = float(self.defence.step(self.panel, vector.expand(self.copies, -1)) @ self.target)
        tried = _Tried(harm if math.isfinite(harm) else -math.inf, vector)
        ranked = sorted([*self.best, tried], key=lambda one: -one.harm)
        others = [one for one in ranked[1:] if not _same_direction(one.vector, ranked[0].vector)]
        self.best = [ranked[0], *others[:1]]
        return tried.harm

    def mixtures(self) -> Iterator[Tensor]:
        """Of the two best so far."""
        if len(self.best) == 2:
            first, second = self.best[0].vector, self.best[1].vector
            yield from [share * first + (1 - share) * second for share in SHARES]

    def refine(self) -> None:
        """The best one, shorter or longer."""
        direction = self.best[0].vector
        golden_section(lambda power: self.attempt(WIDTH**power * direction), REFINED)


def _first(defence: Defence, panel: Tensor, facts: Facts, target: Tensor) -> Iterator[Tensor]:
    mean, norm, gradient = panel.mean(0), panel.norm(dim=1).median(), defence.gradient()
    directions = [-mean, target, -panel.std(0, correction=0), -mean.sign(), Adaptive()(panel, facts)]
    if gradient is not None:
        along = unit(gradient)
        directions += [gradient, -gradient, (mean @ along) * along - mean]
    yield from [length * norm * unit(direction) for direction in directions for length in LENGTHS]
    yield panel[int((panel @ mean).argmin())]
    yield torch.zeros_like(mean)
    for vector in defence.worst(panel, facts.f, target):
        yield from (vector, vector / 2)


def golden_section(harm: Callable[[float], float], evaluations: int) -> None:
    """Try this many points between −1 and 1, ever closer to where `harm` is largest if it has one maximum there."""
    low, high = -1.0, 1.0
    points = [high - GOLDEN * (high - low), low + GOLDEN * (high - low)]
    values = [harm(point) for point in points]
    for _ in range(evaluations - 2):
        if values[0] >= values[1]:
            high, points, values = points[1], [points[1] - GOLDEN * (points[1] - low), points[0]], [math.nan, values[0]]
            values[0] = harm(points[0])
        else:
            low, points, values = points[0], [points[1], points[0] + GOLDEN * (high - points[0])], [values[1], math.nan]
            values[1] = harm(points[1])


def _same_direction(one: Tensor, other: Tensor) -> bool:
    return float(unit(one) @ unit(other)) > 0.999
