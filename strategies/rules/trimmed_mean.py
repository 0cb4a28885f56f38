"""The trimmed mean: of every coordinate, the extremes are left out."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from thistle.experiments.settings import Trim
from thistle.strategies.aggregators import Aggregate, trimmed_mean
from thistle.strategies.pipeline import Pipeline
from thistle.strategies.registry import setting, strategy


@strategy("trimmed-mean", "Yin et al. 2018")
class TrimmedMean(Pipeline):
    """The coordinate mean without the extremes."""

    trim: Trim = setting("the share that is cut off at each end", default=0.2)
    coordinatewise = mixes = True

    def rule(self, updates: Tensor, weights: Tensor | None, **mixing: Any) -> Aggregate:
        """The mean of every coordinate between its extremes."""
        return trimmed_mean(updates, beta=self.trim, **mixing)
