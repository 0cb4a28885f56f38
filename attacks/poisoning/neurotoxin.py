"""A backdoor that lasts: it lives where honest clients hardly change the model."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from thistle.attacks.poisoning.backdoor import Stamped
from thistle.attacks.poisoning.parts import Facts, Past, Poison, Sent
from thistle.attacks.registry import attack, setting
from thistle.experiments.settings import Fraction


@attack("neurotoxin", "Zhang et al. 2022", knows="own data")
class Neurotoxin(Stamped):
    """A backdoor that spares the parameters that the federation moved most.

    The share `attack.spared` of the parameters with the largest |x_t − x_s|, s the round in which an attacker was last
    asked, is neither trained nor sent. When they are asked for the first time, nothing is spared.
    """

    spared: Fraction = setting("the share of the parameters that stay unchanged", default=0.05)
    remembers = True

    def poison(self, facts: Facts) -> Poison:
        """A backdoor that remembers the model that came last."""
        spared = partial(most_moved, share=self.spared)
        return replace(super().poison(facts), spared=spared, recollection=self.send)

    def send(self, own: Tensor, past: Past, generator: torch.Generator) -> Sent:
        """The update without what is spared: weight decay, too, may have moved that."""
        mask = most_moved(past, self.spared)
        return Sent(own if mask is None else own.masked_fill(mask, 0.0))


def most_moved(past: Past, share: float) -> Tensor | None:
    """Which parameters belong to the share that the federation moved most; None: nobody knows yet."""
    if past.step is None:
        return None
    moved = past.step.abs()
    mask = torch.zeros_like(moved, dtype=torch.bool)
    mask[moved.topk(int(share * len(moved))).indices] = True
    return mask & (moved > 0)
