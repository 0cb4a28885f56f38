"""PoisonedFL: the same random direction in every round, so that what rounds do to the model adds up."""

from __future__ import annotations

from statistics import NormalDist

import torch
from torch import Tensor

from thistle.attacks.poisoning.parts import ByMemory, Facts, Past, Sent
from thistle.attacks.registry import attack, setting
from thistle.experiments.randomness import torch_rng
from thistle.experiments.settings import AboveZero, Positive
from thistle.strategies.aggregators.clipping import unit

SHRINK, LEAST = 0.7, 0.5
"""What c is multiplied by when the model does not follow, and where that ends."""
SURE = NormalDist().inv_cdf(0.99)
C, ANCHOR, SINCE = "c", "anchor", "since"
"""In the attackers' notes: c, the model at the last test, and its round."""


@attack("poisoned-fl", "Xie et al. 2025", knows="past models")
class PoisonedFL(ByMemory):
    """One fixed random direction in all rounds while the model follows it.

    Sends λ(v ⊙ s). s ∈ {±1}^d is drawn once, from the seed. With g the federation's last step and m the message that
    attackers sent then: v = |g − m‖g‖/‖m‖| divided by its length, so that parameters that others moved get more, and
    λ = c‖g‖. Every `every` rounds: if the model's change agrees in sign with s no more often than chance does (the 99 %
    quantile of the binomial distribution), c ← 0.7c. Until attackers know g, they send honest updates;
    where g is m itself but for its length, all parameters get the same.
    """

    strength: AboveZero = setting("c at the start", default=8.0, declared=(8.0,))
    every: Positive = setting("rounds between two tests of whether the model follows", default=50)

    def __call__(self, own: Tensor, past: Past, facts: Facts, generator: torch.Generator) -> Sent:
        if past.step is None or past.sent is None:
            return Sent(own, self._notes(self.strength, past.model, facts.number))
        coins = torch.randint(2, own.shape, generator=torch_rng(facts.seed, "poisoned-fl"))
        signs = 1 - 2 * coins.to(own.dtype)
        notes = self._adjusted(past, signs, facts.number)
        g, m = past.step, past.sent
        v = (g - g.norm() * unit(m)).abs()
        v = v if v.any() else torch.ones_like(v)
        return Sent(float(notes[C]) * g.norm() * unit(v) * signs, notes)

    def _adjusted(self, past: Past, signs: Tensor, number: int) -> dict[str, Tensor]:
        """The notes after a test, if one is due."""
        c, anchor, since = float(past.notes[C]), past.notes[ANCHOR], int(past.notes[SINCE])
        if number - since < self.every:
            return dict(past.notes)
        if not follows(past.model - anchor, signs) and c * SHRINK >= LEAST:
            c *= SHRINK
        return self._notes(c, past.model, number)

    def _notes(self, c: float, model: Tensor, number: int) -> dict[str, Tensor]:
        return {C: torch.tensor(c, dtype=torch.float64), ANCHOR: model, SINCE: torch.tensor(number)}


def follows(change: Tensor, signs: Tensor) -> bool:
    """Whether the signs agree more often than 99 of 100 random vectors' would; parameters that stayed do not count."""
    moved = change != 0
    count, agreed = int(moved.sum()), int((change.sign() == signs)[moved].sum())
    return agreed >= count / 2 + SURE * count**0.5 / 2 and count > 0
