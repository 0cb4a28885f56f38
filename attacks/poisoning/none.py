"""No attack."""

from __future__ import annotations

from thistle.attacks.poisoning.parts import Facts, Poison
from thistle.attacks.registry import PoisoningAttack, attack


@attack("none", knows="nothing", suite="none")
class NoAttack(PoisoningAttack):
    """Every client is honest."""

    def poison(self, facts: Facts) -> Poison:
        """Nothing differs."""
        return Poison()
