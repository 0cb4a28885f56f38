"""Labels that are wrong."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from thistle.attacks.poisoning.parts import Facts, OnData, Poison
from thistle.attacks.registry import attack, setting
from thistle.experiments.settings import NonNegative


@attack("label-flip", "Biggio et al. 2012", knows="own data")
class LabelFlip(OnData):
    """Trains on class c as c+1 mod C."""

    strength: NonNegative = setting("times the learning rate", default=1.0, declared=(1.0, 2.0))
    needs_classes = True

    def __call__(self, pixels: Tensor, labels: Tensor, facts: Facts) -> tuple[Tensor, Tensor]:
        return pixels, (labels + 1) % facts.classes

    def poison(self, facts: Facts) -> Poison:
        """Also at another rate."""
        return replace(super().poison(facts), rate=self.strength)
