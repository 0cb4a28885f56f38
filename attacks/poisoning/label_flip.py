"""Labels that are wrong."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from thistle.attacks.poisoning.parts import Facts, OnData, Poison
from thistle.attacks.poisoning.trigger import share_taken_for
from thistle.attacks.registry import attack, setting
from thistle.experiments.errors import UserError
from thistle.experiments.settings import Natural, NonNegative


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


@attack("label-flip-targeted", "Tolpegin et al. 2020", knows="own data", suite="standard")
class TargetedLabelFlip(OnData):
    """Trains on class attack.source as class attack.target."""

    strength: NonNegative = setting("times the learning rate", default=1.0, declared=(1.0, 2.0))
    source: Natural = setting("the number of the class that is to be mistaken", default=0)
    target: Natural = setting("the number of the class that it is to be taken for", default=1)

    def __call__(self, pixels: Tensor, labels: Tensor, facts: Facts) -> tuple[Tensor, Tensor]:
        return pixels, labels.masked_fill(labels == self.source, self.target)

    def poison(self, facts: Facts) -> Poison:
        """Also at another rate."""
        return replace(super().poison(facts), rate=self.strength)

    def check(self, classes: int | None) -> None:
        """Two classes that the task has."""
        if self.source == self.target:
            raise UserError(f"attack.target = {self.target}: is attack.source itself; choose another class")
        for name in ("source", "target"):
            if classes is not None and getattr(self, name) >= classes:
                raise UserError(f"attack.{name} = {getattr(self, name)}: the task's classes are 0-{classes - 1}")

    def measure(self, model: nn.Module, pixels: Tensor, labels: Tensor, batch_size: int) -> dict[str, float]:
        """How many images of the source are taken for the target."""
        chosen = pixels[labels == self.source]
        return {"attack_success": share_taken_for(model, chosen, self.target, batch_size)}
