"""MeaMed: the mean around the median."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from thistle.experiments.settings import Natural
from thistle.strategies.aggregators import Aggregate, meamed
from thistle.strategies.pipeline import Pipeline
from thistle.strategies.registry import setting, strategy


@strategy("meamed", "Xie et al. 2018")
class MeaMed(Pipeline):
    """The mean of the n − f values of each parameter that are nearest to their median."""

    malicious: Natural = setting("f, the number of malicious replies per round that it withstands", default=1)
    coordinatewise = mixes = True

    def rule(self, updates: Tensor, weights: Tensor | None, **mixing: Any) -> Aggregate:
        """Per coordinate, without the f values farthest from the median."""
        return meamed(updates, self.malicious, **mixing)

    def least_updates(self) -> int:
        """A majority must be honest."""
        return 2 * self.malicious + 1
