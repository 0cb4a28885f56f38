"""The update turned around."""

from __future__ import annotations

import torch
from torch import Tensor

from thistle.attacks.poisoning.parts import OnUpdate
from thistle.attacks.registry import attack, setting
from thistle.experiments.settings import NonNegative


@attack("sign-flip", "Damaskinos et al. 2018", knows="own data")
class SignFlip(OnUpdate):
    """−ν u."""

    strength: NonNegative = setting("ν", default=5.0, declared=(1.0, 5.0), tried=(1.0, 5.0, 0.5))

    def __call__(self, own: Tensor, generator: torch.Generator) -> Tensor:
        return -self.strength * own
