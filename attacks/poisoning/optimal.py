"""ALIE and IPM at the strength that moves an aggregation rule farthest, found by a line search as in byzfl."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from thistle.attacks.poisoning.parts import Facts
from thistle.attacks.poisoning.search import USED, Searched, defence_of, within_reach
from thistle.attacks.registry import attack, setting

PAPER = "byzfl"
EVALUATIONS, STEP, SHRINK = 20, 10.0, 0.8


@dataclass(frozen=True, kw_only=True)
class Optimal(Searched):
    """The strength that maximises ‖AGG(panel ∪ f copies) − mean(panel)‖, AGG a strategy without its server learning.

    What is sent is cut to 100 times the panel's median norm.
    """

    rule: str = setting(
        "the strategy to try out: `used`, the experiment's own, or a name of `thistle list strategies`", default=USED
    )

    def tries_out(self) -> str:
        """The rule."""
        return self.rule

    def vector(self, panel: Tensor, strength: float) -> Tensor:
        """What would be sent at this strength."""
        raise NotImplementedError

    def __call__(self, panel: Tensor, facts: Facts) -> Tensor:
        defence, mean = defence_of(facts), panel.mean(0)

        def sent(strength: float) -> Tensor:
            return within_reach(self.vector(panel, strength), panel)

        def distance(strength: float) -> float:
            return float((defence.step(panel, sent(strength).expand(facts.f, -1)) - mean).norm())

        return sent(line_search(distance))


@attack("optimal-alie", PAPER, knows="rule")
class OptimalAlie(Optimal):
    """μ − zσ with the z that moves the aggregate farthest from the honest mean."""

    def vector(self, panel: Tensor, strength: float) -> Tensor:
        """μ − zσ."""
        return panel.mean(0) - strength * panel.std(0, correction=0)


@attack("optimal-ipm", PAPER, knows="rule")
class OptimalIpm(Optimal):
    """−ε μ with the ε that moves the aggregate farthest from the honest mean."""

    def vector(self, panel: Tensor, strength: float) -> Tensor:
        """−εμ."""
        return -strength * panel.mean(0)


def line_search(harm: Callable[[float], float]) -> float:
    """Where `harm` was largest: from 0 with doubling steps while it grows, then with steps of 0.8 of the last one."""
    best, most, step = 0.0, harm(0.0), STEP
    expanding = True
    for _ in range(EVALUATIONS - 1):
        found = harm(best + step)
        if better := found > most:
            best, most = best + step, found
        expanding = expanding and better
        step *= 2 if expanding else SHRINK
    return best
