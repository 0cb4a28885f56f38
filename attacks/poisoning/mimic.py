"""One honest client's update, many times."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from thistle.attacks.poisoning.parts import ByColluders, Facts, Poison
from thistle.attacks.registry import attack


@attack("mimic", "Karimireddy et al. 2022", knows="honest clients")
class Mimic(ByColluders):
    """All attackers copy one honest client.

    The first of the panel.
    """

    def __call__(self, panel: Tensor, facts: Facts) -> Tensor:
        return panel[0].clone()

    def poison(self, facts: Facts) -> Poison:
        """One training is enough."""
        return replace(super().poison(facts), panel=1)
