"""Before anything is mixed or aggregated: no update is longer than others are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from thistle.strategies import aggregators
from thistle.strategies.rounds import Progress, Round
from thistle.strategies.steps.aggregation import kept_updates


@dataclass(frozen=True)
class AdaptiveClipping:
    """ARC: the ⌊2(f/n)(n − f)⌋ longest of the kept updates get the length of the next (Allouah et al. 2025).

    Updates stay the clients' own, so any rule may follow. f is lower where a filter left no honest majority for it.
    """

    malicious: int
    stage: ClassVar[str] = "limit"

    def __call__(self, round: Round, progress: Progress) -> Progress:
        count = int(progress.kept.sum())
        if not count:
            return progress
        factors = torch.ones(len(progress.kept), dtype=torch.float64)
        most = min(self.malicious, (count - 1) // 2)
        factors[progress.kept] = aggregators.adaptive_clipping(kept_updates(progress), most)
        for row in (factors < 1).nonzero().flatten().tolist():
            progress.updates[row].mul_(float(factors[row]))
        return replace(progress, spectra=progress.spectra and progress.spectra.rescaled(factors))
