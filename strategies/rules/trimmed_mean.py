"""The trimmed mean: of every coordinate, the extremes are left out."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from thistle.experiments.settings import Trim
from thistle.strategies.aggregators import Aggregate, trimmed_mean
from thistle.strategies.pipeline import Pipeline
from thistle.strategies.registry import setting, strategy
from thistle.strategies.rules.median import Capped


@strategy("trimmed-mean", "Yin et al. 2018")
class TrimmedMean(Capped, Pipeline):
    """The coordinate mean without the extremes, weighted if wanted."""

    trim: Trim = setting(
        "the share that is cut off at each end: of the clients, or with `strategy.weighted` of their weight",
        default=0.2,
    )
    coordinatewise = mixes = True

    def rule(self, updates: Tensor, weights: Tensor | None, **mixing: Any) -> Aggregate:
        """The mean of every coordinate between its extremes."""
        return trimmed_mean(updates, beta=self.trim, weights=self.capped(weights), **mixing)

    def largest_share(self) -> float:
        """Of which f clients have no more than is cut off."""
        share, f = super().largest_share(), self.malicious
        return min(share, self.trim / f) if self.trim and f else share
