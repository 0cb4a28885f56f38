"""No update at all: free riders."""

from __future__ import annotations

import torch
from torch import Tensor

from thistle.attacks.poisoning.parts import OnUpdate
from thistle.attacks.registry import attack


@attack("zero", knows="nothing")
class Zero(OnUpdate):
    """Sends the model back unchanged."""

    def __call__(self, own: Tensor, generator: torch.Generator) -> Tensor:
        return torch.zeros_like(own)
