"""Multi-Metrics: the clients whose distances from the model are like everybody else's, by three measures."""

from __future__ import annotations

from torch import Tensor

from thistle.strategies.aggregators import Aggregate, multi_metrics
from thistle.strategies.options import Rank as Part
from thistle.strategies.pipeline import Pipeline, Weighted
from thistle.strategies.registry import setting, strategy
from thistle.strategies.rounds import Round, Step
from thistle.strategies.steps.aggregation import RoundAggregation
from thistle.strategies.steps.class_aware import ClassAware


@strategy("multi-metrics", "Huang et al. 2023")
class MultiMetrics(ClassAware, Weighted, Pipeline):
    """The mean of those most like the others by Manhattan, Euclidean and cosine distance.

    `weighted` is about the mean; who is like the others is decided without weights.
    """

    keep: Part = setting("the share of replies that is kept", default=0.3)

    def steps(self) -> list[Step | None]:
        """One step that chooses and averages."""
        return [RoundAggregation("multi-metrics", self._aggregate, "too unlike the others")]

    def _aggregate(self, round: Round, updates: Tensor, weights: Tensor) -> Aggregate:
        return multi_metrics(updates, round.model, self.keep, weights)

    def is_mean(self) -> bool:
        """Only where all are kept."""
        return self.keep == 1
