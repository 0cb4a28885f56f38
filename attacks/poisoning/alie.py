"""A little is enough: as far from the mean as an honest client could be."""

from __future__ import annotations

from statistics import NormalDist

from torch import Tensor

from thistle.attacks.poisoning.parts import ByColluders, Facts
from thistle.attacks.registry import attack, setting
from thistle.experiments.settings import NonNegative


@attack("alie", "Baruch et al. 2019", knows="colluders")
class Alie(ByColluders):
    """A little is enough: μ − zσ.

    μ is the panel's mean, σ its standard deviation, coordinate by coordinate (divided by k: one row has σ = 0).
    """

    strength: NonNegative | None = setting(
        "z", default=None, declared=("default", 1.5), tried=("default", 1.5, 0.5, 3.0)
    )

    def work_out(self, n: int, f: int) -> float:
        """By the paper's formula."""
        return alie_z(n, f) if self.strength is None else self.strength

    def __call__(self, panel: Tensor, facts: Facts) -> Tensor:
        return panel.mean(0) - self.work_out(facts.n, facts.f) * panel.std(0, correction=0)


def alie_z(n: int, f: int) -> float:
    """How far f of n clients may go together: z = Φ⁻¹((n − f − s)/(n − f)), s = ⌊n/2 + 1⌋ − f honest supporters.

    At least 0 (too few attackers to win anybody over) and at most Φ⁻¹(0.999) (a majority needs no supporters).
    """
    honest, supporters = n - f, n // 2 + 1 - f
    quantile = (honest - supporters) / honest if honest > 0 else 1.0
    return NormalDist().inv_cdf(min(max(quantile, 0.5), 0.999))
