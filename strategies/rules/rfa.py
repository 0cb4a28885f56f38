"""RFA: the geometric median of the updates."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from thistle.strategies.aggregators import Aggregate, geometric_median
from thistle.strategies.pipeline import Pipeline, Weighted
from thistle.strategies.registry import strategy
from thistle.strategies.steps.class_aware import ClassAware


@strategy("rfa", "Pillutla et al. 2022")
class RFA(ClassAware, Weighted, Pipeline):
    """The geometric median."""

    mixes = True

    def rule(self, updates: Tensor, weights: Tensor | None, **mixing: Any) -> Aggregate:
        """The point with the least sum of distances to all updates."""
        return geometric_median(updates, weights, **mixing)


GeometricMedian = RFA
