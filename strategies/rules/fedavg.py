"""The mean of the updates, and the class that all means share."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from thistle.strategies.aggregators import Aggregate, mean
from thistle.strategies.pipeline import Pipeline, Weighted
from thistle.strategies.registry import setting, strategy
from thistle.strategies.steps.class_aware import ClassAware


@strategy("fedavg", "McMahan et al. 2017")
class FedAvg(ClassAware, Weighted, Pipeline):
    """The mean of the updates, weighted by data size."""

    weighted: bool = setting("whether clients weigh by their number of examples", default=True)
    mixes = True

    def rule(self, updates: Tensor, weights: Tensor | None, **mixing: Any) -> Aggregate:
        """Σ w_i Δ_i."""
        return mean(updates, weights, **mixing)

    def is_mean(self) -> bool:
        """Unless Zeno or adaptive clipping bounds the length of a single update."""
        return not self.limits_length
