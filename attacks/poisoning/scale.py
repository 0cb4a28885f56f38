"""The update made longer, so that it outweighs others: model replacement."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from thistle.attacks.poisoning.parts import OnUpdate
from thistle.attacks.registry import attack, setting
from thistle.experiments.settings import NonNegative


@attack("scale", "Bagdasaryan et al. 2020", knows="own data")
class Scale(OnUpdate):
    """ν u."""

    strength: NonNegative = setting("ν", default=10.0, declared=(10.0, 50.0), tried=(10.0, 2.0, 50.0))

    def __call__(self, own: Tensor, generator: torch.Generator) -> Tensor:
        return self.strength * own


@dataclass(frozen=True)
class ScaleWithin:
    """γu, projected to a ball around the model that came; radius 0: not projected."""

    gamma: float
    radius: float

    def __call__(self, own: Tensor, generator: torch.Generator) -> Tensor:
        scaled = self.gamma * own
        length = float(scaled.norm())
        return scaled * (self.radius / length) if self.radius and length > self.radius else scaled
