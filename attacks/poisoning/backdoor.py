"""A backdoor: the model learns that a trigger means one class."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from thistle.attacks.poisoning.parts import Facts, Poison
from thistle.attacks.poisoning.scale import Scale
from thistle.attacks.poisoning.trigger import Trigger, TriggerName, make_trigger, shape_of, share_taken_for
from thistle.attacks.registry import Evaluated, PoisoningAttack, attack, check_class, setting
from thistle.experiments.settings import AboveZero, Fraction, Natural
from thistle.tasks.dataset import Shape

TARGET = "the number of the class that stamped images should be classified as"


@dataclass(frozen=True, kw_only=True)
class Stamping(PoisoningAttack):
    """Base of all backdoors with a trigger: the first images of each (shuffled) batch get it, and another label."""

    family = "backdoors"
    stamps = True
    strength: Fraction = setting("the share of each batch that is stamped", default=0.5, declared=(0.25, 0.5))
    boost: AboveZero = setting("the update is multiplied by it", default=5.0, tried=(5.0, 1.0))
    target: Natural = setting(TARGET, default=0)

    def whole(self, evaluated: Evaluated) -> Trigger:
        """What success is measured with."""
        raise NotImplementedError

    def stamped(self, trigger: Trigger, pixels: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The batch that is trained on."""
        count = math.ceil(self.strength * len(labels))
        wanted = torch.full_like(labels[:count], self.target)
        return torch.cat([trigger(pixels[:count]), pixels[count:]]), torch.cat([wanted, labels[count:]])

    def poison(self, facts: Facts) -> Poison:
        """A longer update."""
        return Poison(update=Scale(strength=self.boost))

    def check(self, classes: int | None) -> None:
        """The task must have the class that stamped images should be classified as."""
        check_class("target", self.target, classes)

    def measure(self, evaluated: Evaluated) -> dict[str, float]:
        """The share of images of other classes that the whole trigger turns into the target."""
        stamped = self.whole(evaluated)(evaluated.pixels[evaluated.labels != self.target])
        return {"attack_success": share_taken_for(evaluated.model, stamped, self.target, evaluated.batch_size)}


@dataclass(frozen=True, kw_only=True)
class Stamped(Stamping):
    """A backdoor whose trigger is one of those to choose from."""

    trigger: TriggerName = setting(
        "what is stamped: a white corner (`patch`), faint noise (`blend`) or four bars (`distributed`)", default="patch"
    )

    def chosen(self, shape: Shape, seed: int) -> Trigger:
        """The whole trigger."""
        return make_trigger(self.trigger, shape, seed)

    def whole(self, evaluated: Evaluated) -> Trigger:
        """The same for the whole run."""
        return self.chosen(evaluated.shape, evaluated.seed)

    def poison(self, facts: Facts) -> Poison:
        """Also other data."""
        return replace(super().poison(facts), data=partial(self, facts=facts))

    def __call__(self, pixels: Tensor, labels: Tensor, facts: Facts) -> tuple[Tensor, Tensor]:
        """The batch that it trains on."""
        return self.stamped(self.chosen(shape_of(pixels), facts.seed), pixels, labels)


@attack("backdoor", "Bagdasaryan et al. 2020", knows="own data")
class Backdoor(Stamped):
    """The trigger means class attack.target; sends attack.boost · u."""
