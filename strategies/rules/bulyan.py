"""Bulyan: Krum chooses, then a trimmed mean around the median."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from thistle.experiments.settings import Natural
from thistle.strategies.aggregators import Aggregate, bulyan
from thistle.strategies.pipeline import Pipeline
from thistle.strategies.registry import setting, strategy


@strategy("bulyan", "El Mhamdi et al. 2018")
class Bulyan(Pipeline):
    """Multi-Krum, then a trimmed mean."""

    malicious: Natural = setting("f, the number of malicious replies per round that it withstands", default=1)
    coordinatewise = mixes = True
    leaves_out = "not selected"

    def rule(self, updates: Tensor, weights: Tensor | None, **mixing: Any) -> Aggregate:
        """Krum's choice of n − 2f, then per coordinate the values nearest to their median."""
        return bulyan(updates, self.malicious, **mixing)

    def least_updates(self) -> int:
        """The paper's bound."""
        return 4 * self.malicious + 3

    def always_excludes(self, replies: int) -> tuple[int, str]:
        """The 2f that Krum does not choose."""
        return 2 * self.malicious, f"strategy.malicious = {self.malicious}"
