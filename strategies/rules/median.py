"""The coordinate median."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from thistle.strategies.aggregators import Aggregate, coordinate_median
from thistle.strategies.pipeline import Pipeline
from thistle.strategies.registry import strategy


@strategy("median", "Yin et al. 2018")
class Median(Pipeline):
    """The coordinate median."""

    coordinatewise = mixes = True

    def rule(self, updates: Tensor, weights: Tensor | None, **mixing: Any) -> Aggregate:
        """The median of every coordinate by itself."""
        return coordinate_median(updates, **mixing)
