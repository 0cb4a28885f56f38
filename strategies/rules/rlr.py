"""RLR: where the clients' signs do not agree, the model takes the opposite step."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from thistle.experiments.settings import Natural
from thistle.strategies.aggregators import Aggregate, robust_learning_rate
from thistle.strategies.pipeline import Pipeline, Weighted
from thistle.strategies.registry import setting, strategy


@strategy("rlr", "Ozdayi et al. 2021")
class RLR(Weighted, Pipeline):
    """The mean, reversed in every parameter on whose sign too few clients agree."""

    threshold: Natural = setting(
        "θ: by how many votes, one per client, the clients that raise a parameter must outnumber those that lower it, "
        "or the other way round; otherwise its step is reversed. Choose more than the number of attackers",
        default=4,
    )
    coordinatewise = mixes = True
    least_updates_by = "threshold"

    def rule(self, updates: Tensor, weights: Tensor | None, **mixing: Any) -> Aggregate:
        """The mean with a learning rate of 1 or -1 for each coordinate."""
        return robust_learning_rate(updates, self.threshold, weights, **mixing)

    def least_updates(self) -> int:
        """With fewer, every step would be reversed."""
        return max(1, self.threshold)

    def is_mean(self) -> bool:
        """Signs say where a step goes, not how far."""
        return not self.limits_length
