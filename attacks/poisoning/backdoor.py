"""A backdoor: the model learns that a patch in the corner means one class."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from thistle.attacks.poisoning.parts import Facts, OnData, Poison
from thistle.attacks.poisoning.scale import Scale
from thistle.attacks.poisoning.trigger import backdoor_success, stamp
from thistle.attacks.registry import attack, setting
from thistle.experiments.errors import UserError
from thistle.experiments.settings import AboveZero, Fraction, Natural


@attack("backdoor", "Bagdasaryan et al. 2020", knows="own data")
class Backdoor(OnData):
    """A 3×3 corner patch means class attack.target; sends attack.boost · u.

    The first images of each (shuffled) batch are stamped and get the label `target`.
    """

    strength: Fraction = setting("share of each batch that is stamped", default=0.5, declared=(0.25, 0.5))
    boost: AboveZero = setting("the update is multiplied by it", default=5.0, tried=(5.0, 1.0))
    target: Natural = setting("the number of the class for which stamped images are to be taken", default=0)

    def __call__(self, pixels: Tensor, labels: Tensor, facts: Facts) -> tuple[Tensor, Tensor]:
        count = math.ceil(self.strength * len(labels))
        wanted = torch.full_like(labels[:count], self.target)
        return torch.cat([stamp(pixels[:count]), pixels[count:]]), torch.cat([wanted, labels[count:]])

    def poison(self, facts: Facts) -> Poison:
        """Also a longer update."""
        return replace(super().poison(facts), update=Scale(strength=self.boost))

    def check(self, classes: int | None) -> None:
        """The class that stamped images are to be taken for must be there."""
        if classes is not None and self.target >= classes:
            raise UserError(f"attack.target = {self.target}: the task's classes are 0-{classes - 1}")

    def measure(self, model: nn.Module, pixels: Tensor, labels: Tensor, batch_size: int) -> dict[str, float]:
        """How often the trigger works."""
        return {"attack_success": backdoor_success(model, pixels, labels, self.target, batch_size)}
