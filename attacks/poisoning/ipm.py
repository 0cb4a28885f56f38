"""Inner product manipulation."""

from __future__ import annotations

from torch import Tensor

from thistle.attacks.poisoning.parts import ByColluders, Facts
from thistle.attacks.registry import attack, setting
from thistle.experiments.settings import NonNegative


@attack("ipm", "Xie et al. 2020", knows="colluders")
class Ipm(ByColluders):
    """Inner product manipulation: −ε μ."""

    strength: NonNegative = setting("ε", default=0.5, declared=(0.5, 10.0), tried=(0.5, 10.0, 1.0, 0.1, 2.0))

    def __call__(self, panel: Tensor, facts: Facts) -> Tensor:
        return -self.strength * panel.mean(0)
