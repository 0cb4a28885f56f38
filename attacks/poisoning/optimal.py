"""ALIE and IPM at the strength that moves an aggregation rule farthest, found by a line search as in byzfl."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from thistle.attacks.poisoning.parts import Facts
from thistle.attacks.poisoning.search import USED, Searched, defence_of, within_reach
from thistle.attacks.registry import attack, setting

PAPER = "byzfl"
EVALUATIONS, STEP, SHRINK = 20, 10.0, 0.8
RULE = "the strategy that it is tried out against: `used`, the experiment's own, or a name of `thistle list strategies`"


@attack("optimal-alie", PAPER, knows="rule")
class OptimalAlie(Searched):
    """μ − zσ with the z that moves the aggregate farthest from the honest mean.

    z maximises ‖AGG(panel ∪ f copies) − mean(panel)‖ for the strategy `rule`, its own server learning left out; what is
    sent is cut to 100 times the panel's median norm.
    """

    rule: str = setting(RULE, default=USED)

    def tries_out(self) -> str:
        """The rule."""
        return self.rule

    def __call__(self, panel: Tensor, facts: Facts) -> Tensor:
        mean, deviation = panel.mean(0), panel.std(0, correction=0)
        return _farthest(panel, facts, lambda z: mean - z * deviation)


@attack("optimal-ipm", PAPER, knows="rule")
class OptimalIpm(Searched):
    """−ε μ with the ε that moves the aggregate farthest from the honest mean.

    ε maximises ‖AGG(panel ∪ f copies) − mean(panel)‖ for the strategy `rule`, its own server learning left out; what is
    sent is cut to 100 times the panel's median norm.
    """

    rule: str = setting(RULE, default=USED)

    def tries_out(self) -> str:
        """The rule."""
        return self.rule

    def __call__(self, panel: Tensor, facts: Facts) -> Tensor:
        mean = panel.mean(0)
        return _farthest(panel, facts, lambda epsilon: -epsilon * mean)


def _farthest(panel: Tensor, facts: Facts, vector: Callable[[float], Tensor]) -> Tensor:
    defence, mean = defence_of(facts), panel.mean(0)

    def sent(strength: float) -> Tensor:
        return within_reach(vector(strength), panel)

    def distance(strength: float) -> float:
        return float((defence.step(panel, sent(strength).expand(facts.f, -1)) - mean).norm())

    return sent(line_search(distance))


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
