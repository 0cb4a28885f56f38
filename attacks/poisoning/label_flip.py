"""Labels that are wrong."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import Tensor, nn

from thistle.attacks.poisoning.parts import Aimed, Facts, OnData, Past, Poison
from thistle.attacks.poisoning.trigger import share_taken_for
from thistle.attacks.registry import Evaluated, PoisoningAttack, attack, check_class, setting
from thistle.experiments.errors import UserError
from thistle.experiments.settings import Natural, NonNegative
from thistle.tasks.models import predict


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
    source: Natural = setting("the number of the class that should be misclassified", default=0)
    target: Natural = setting("the number of the class that it should be classified as", default=1)

    def __call__(self, pixels: Tensor, labels: Tensor, facts: Facts) -> tuple[Tensor, Tensor]:
        return pixels, labels.masked_fill(labels == self.source, self.target)

    def poison(self, facts: Facts) -> Poison:
        """Also at another rate."""
        return replace(super().poison(facts), rate=self.strength)

    def check(self, classes: int | None) -> None:
        """Two classes that the task has."""
        if self.source == self.target:
            raise UserError(f"attack.target = {self.target}: is the same as attack.source; choose another class")
        check_class("source", self.source, classes)
        check_class("target", self.target, classes)

    def measure(self, evaluated: Evaluated) -> dict[str, float]:
        """How many images of the source are classified as the target."""
        chosen = evaluated.pixels[evaluated.labels == self.source]
        return {"attack_success": share_taken_for(evaluated.model, chosen, self.target, evaluated.batch_size)}


@attack("label-flip-dynamic", "Shejwalkar et al. 2022", knows="own data")
class DynamicLabelFlip(PoisoningAttack):
    """Labels each image as the class that the received model finds least likely."""

    family = "labels"
    strength: NonNegative = setting("times the learning rate", default=1.0, declared=(1.0, 2.0))

    def poison(self, facts: Facts) -> Poison:
        """The labels of each round's own model."""
        return Poison(rate=self.strength, aim=self.aim)

    def aim(self, model: nn.Module, pixels: Tensor, labels: Tensor, past: Past, generator: torch.Generator) -> Aimed:
        """The model changes during training, so a copy gives its earlier predictions."""
        came = copy.deepcopy(model).eval()

        def flipped(pixels: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
            with torch.no_grad():
                return pixels, predict(came, pixels).argmin(1)

        return Aimed(flipped)
