"""Attacks that try out what they may send against the server's strategy, and send what does the most harm."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from thistle.attacks.poisoning.parts import ByColluders, Defence, Facts, Poison
from thistle.strategies.aggregators import clip

USED = "used"
"""The name of the strategy that the experiment itself uses."""
LONGEST = 100.0
"""In units of the panel's median norm: what is longer a guard rejects, whatever the strategy would make of it."""
_last: list[tuple[Searched, Facts, Tensor, Tensor]] = []
"""All colluders of a process share one search per round: the attack, the facts, the panel, and what is sent."""


@dataclass(frozen=True, kw_only=True)
class Searched(ByColluders):
    """Knows a strategy. Its panel has n − f rows: with f copies of what is tried, n as in a real round."""

    family = "searches"

    def poison(self, facts: Facts) -> Poison:
        """A panel of that size."""
        return replace(super().poison(facts), panel=max(1, facts.n - facts.f))

    def send(self, panel: Tensor, facts: Facts, generator: torch.Generator) -> Tensor:
        """What the search finds, once per round and process."""
        known = replace(facts, defence=None)
        if not _last or _last[0][:2] != (self, known) or _last[0][2] is not panel:
            finite = panel[panel.isfinite().all(1)]  # honest training from a damaged model may diverge
            _last[:] = [(self, known, panel, self(finite, facts) if len(finite) else torch.zeros_like(panel[0]))]
        return _last[0][3]


def within_reach(vector: Tensor, panel: Tensor) -> Tensor:
    """No longer than a guard believes."""
    return clip(vector, LONGEST * float(panel.norm(dim=1).median()))


def defence_of(facts: Facts) -> Defence:
    """The strategy in the attackers' hands."""
    assert facts.defence is not None, "an attack that names a rule to try out is given it"
    return facts.defence
