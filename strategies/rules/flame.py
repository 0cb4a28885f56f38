"""FLAME: the majority that trains similarly, clipped to the median length, and a little noise."""

from __future__ import annotations

from torch import Tensor

from thistle.experiments.randomness import torch_rng
from thistle.experiments.settings import NonNegative
from thistle.strategies.aggregators import Aggregate, flame
from thistle.strategies.pipeline import Pipeline, Weighted
from thistle.strategies.registry import setting, strategy
from thistle.strategies.rounds import Round, Step
from thistle.strategies.steps.aggregation import RoundAggregation


@strategy("flame", "Nguyen et al. 2022")
class Flame(Weighted, Pipeline):
    """The densest majority by the models' angles, clipped to the median length, plus noise.

    `weighted` is about the mean; the majority is one of clients, not of examples.
    """

    noise: NonNegative = setting(
        "λ: Gaussian noise with a standard deviation of λ times the median length is added to every weight; 0: none",
        default=0.001,
    )

    def steps(self) -> list[Step | None]:
        """One step that chooses, clips, averages and adds noise."""
        return [RoundAggregation("flame", self._aggregate, "not in the majority that trains similarly")]

    def _aggregate(self, round: Round, updates: Tensor, weights: Tensor) -> Aggregate:
        return flame(updates, round.model, self.noise, torch_rng(self.seed, "flame-noise", round.number), weights)
