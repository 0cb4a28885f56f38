"""RoFSL's mixture: half of the attackers flip signs, half flip labels."""

from __future__ import annotations

from thistle.attacks.registry import Attacker, PoisoningAttack, attack, setting
from thistle.experiments.randomness import numpy_rng
from thistle.experiments.settings import Attack, NonNegative


@attack("mix", "RoFSL", knows="own data")
class Mix(PoisoningAttack):
    """Half flip signs, half flip labels, each with its own strength.

    Signs with ν ~ U[0.1, 10.1], labels at a learning rate times ν ~ U[0.1, 2.1].
    """

    strength: NonNegative = setting("times the strengths", default=1.0, declared=(0.5, 1.0), tried=(1.0, 0.5, 0.2))
    has_parts = True

    def part(self, attack: Attack, who: Attacker) -> Attack:
        """Signs for the first half of the attackers (the larger one, if they are odd); a lone node draws lots."""
        rng = numpy_rng(who.seed, "mix", who.client)
        signs = who.number < (who.count + 1) // 2 if who.number is not None else bool(rng.integers(2))
        nu = rng.uniform(0.1, 10.1 if signs else 2.1) * self.strength
        return attack.model_copy(update={"kind": "sign-flip" if signs else "label-flip", "strength": nu})
