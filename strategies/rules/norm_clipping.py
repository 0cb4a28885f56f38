"""Norm clipping: no update counts for more than its direction and a bounded length."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch

from thistle.experiments.randomness import torch_rng
from thistle.experiments.settings import AboveZero, NonNegative
from thistle.strategies.aggregators import clipped_mean
from thistle.strategies.pipeline import Pipeline, Weighted
from thistle.strategies.registry import setting, strategy
from thistle.strategies.rounds import Progress, Round, Step
from thistle.strategies.steps.aggregation import Aggregation


@strategy("norm-clipping", "Sun et al. 2019")
class NormClipping(Weighted, Pipeline):
    """The mean of updates of bounded length, with noise if wanted."""

    bound: AboveZero | Literal["median"] = setting(
        "S: the length to which longer updates are clipped; `median`: the median length of the round's updates, each "
        "counted once",
        default="median",
    )
    noise: NonNegative = setting(
        "the standard deviation of the Gaussian noise that is added to each parameter in every round; 0: none",
        default=0.0,
    )

    def steps(self) -> list[Step | None]:
        """Clip and average, then add noise."""
        bound = None if self.bound == "median" else self.bound
        rule = Aggregation("norm-clipping", lambda u, w, **mixing: clipped_mean(u, w, bound, **mixing), mixes=True)
        return [rule, Noise(self.noise, self.seed)]


@dataclass(frozen=True)
class Noise:
    """N(0, σ²) on every parameter of the aggregate, drawn by (seed, round)."""

    deviation: float
    seed: int
    stage: ClassVar[str] = "aggregate"
    takes_mixing: ClassVar[bool] = True

    @property
    def off(self) -> bool:
        return not self.deviation

    def __call__(self, round: Round, progress: Progress) -> Progress:
        if progress.weights is None or not progress.weights.any():
            return progress  # nobody was heard: the model stays
        drawn = torch.randn(len(progress.step), generator=torch_rng(self.seed, "noise", round.number))
        return replace(progress, step=progress.step + self.deviation * drawn)
