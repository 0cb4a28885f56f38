"""A backdoor that stays near the model that came, then outweighs everybody."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from thistle.attacks.poisoning.backdoor import Stamped
from thistle.attacks.poisoning.parts import Facts, Poison
from thistle.attacks.poisoning.scale import ScaleWithin
from thistle.attacks.registry import attack, setting
from thistle.experiments.settings import Fraction, NonNegative


@attack("constrain-and-scale", "Bagdasaryan et al. 2020", knows="own data")
class ConstrainAndScale(Stamped):
    """A backdoor that stays near the received model x_t; sends γu.

    Minimises αL + (1 − α)‖x − x_t‖. γ = n/f replaces the model of a mean over n clients, f of whom attack. γu is
    projected to a ball of radius `attack.radius`.
    """

    boost: NonNegative = setting("γ: the update is multiplied by it; 0: n/f, which replaces a mean", default=0.0)
    alpha: Fraction = setting("α: the weight of the loss; the distance has the rest", default=0.9)
    radius: NonNegative = setting("a longer update is shortened to this; 0: never", default=0.0)

    def poison(self, facts: Facts) -> Poison:
        """Another loss, and what to do with the update."""
        within = ScaleWithin(self.boost or facts.n / facts.f, self.radius)
        return replace(super().poison(facts), constraint=self.constrained, update=within)

    def constrained(self, loss: Tensor, model: nn.Module, came: Mapping[str, Tensor]) -> Tensor:
        """The loss that is minimised."""
        away = torch.cat([(parameter - came[name]).flatten() for name, parameter in model.named_parameters()])
        return self.alpha * loss + (1 - self.alpha) * torch.linalg.vector_norm(away)
