"""Noise."""

from __future__ import annotations

import torch
from torch import Tensor

from thistle.attacks.poisoning.parts import OnUpdate
from thistle.attacks.registry import attack, setting
from thistle.experiments.settings import NonNegative


@attack("gaussian", "Blanchard et al. 2017", knows="own data")
class Gaussian(OnUpdate):
    """Noise instead of an update.

    s‖u‖ · g/‖g‖ with g ~ N(0, I).
    """

    strength: NonNegative = setting("‖noise‖ / ‖u‖", default=10.0, declared=(10.0, 100.0), tried=(10.0, 1.0, 100.0))

    def __call__(self, own: Tensor, generator: torch.Generator) -> Tensor:
        g = torch.randn(own.shape, generator=generator)
        return self.strength * own.norm() / g.norm() * g
