"""A backdoor whose trigger no attacker shows whole."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor

from thistle.attacks.poisoning.backdoor import Stamped
from thistle.attacks.poisoning.parts import Facts
from thistle.attacks.poisoning.trigger import TriggerName, shape_of
from thistle.attacks.registry import Attacker, attack, setting
from thistle.experiments.errors import UserError
from thistle.experiments.randomness import numpy_rng
from thistle.experiments.settings import Attack
from thistle.tasks.dataset import Shape

BY_NUMBER = -1
Parts = Annotated[int, Field(ge=2, lt=2**63)]
Part = Annotated[int, Field(ge=BY_NUMBER, lt=2**63)]


@attack("dba", "Xie et al. 2020", knows="own data")
class DistributedBackdoor(Stamped):
    """A backdoor in parts: each attacker stamps one of k.

    Attacker i stamps part i mod k. Success is measured with the whole trigger, which no attacker trained on.
    """

    trigger: TriggerName = setting("the whole trigger; each attacker stamps a part of it", default="distributed")
    parts: Parts = setting("k", default=4)
    own_part: Part = setting(
        "the number of the part that is stamped, from 0; -1: each attacker stamps its own", default=BY_NUMBER
    )
    has_parts = True

    def part(self, attack: Attack, who: Attacker) -> Attack:
        """By the attacker's number; a lone node draws lots."""
        if self.own_part != BY_NUMBER:
            return attack
        drawn = int(numpy_rng(who.seed, "dba", who.client).integers(self.parts))
        return attack.model_copy(update={"own_part": drawn if who.number is None else who.number % self.parts})

    def __call__(self, pixels: Tensor, labels: Tensor, facts: Facts) -> tuple[Tensor, Tensor]:
        whole = self.chosen(shape_of(pixels), facts.seed)
        return self.stamped(whole.part(self.own_part, self.parts), pixels, labels)

    def check(self, classes: int | None) -> None:
        """There must be such a part."""
        super().check(classes)
        if self.own_part >= self.parts:
            raise UserError(f"attack.own-part = {self.own_part}: attack.parts = {self.parts} are numbered from 0")

    def check_images(self, shape: Shape) -> None:
        """No part may be empty."""
        places = len(self.chosen(shape, 0).places)
        if self.parts > places:
            raise UserError(f"attack.parts = {self.parts}: the trigger {self.trigger} has only {places} pixels")
