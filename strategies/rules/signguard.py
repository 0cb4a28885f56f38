"""SignGuard: usual lengths, and the usual share of signs."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor

from thistle.experiments.extras import require
from thistle.experiments.randomness import numpy_rng
from thistle.strategies.aggregators import Aggregate, signguard
from thistle.strategies.options import Rank as Part
from thistle.strategies.pipeline import Pipeline, Weighted
from thistle.strategies.registry import setting, strategy
from thistle.strategies.rounds import Round, Step
from thistle.strategies.steps.aggregation import RoundAggregation

Lower = Annotated[float, Field(ge=0.0, le=1.0)]
Upper = Annotated[float, Field(ge=1.0)]


@strategy("signguard", "Xu et al. 2022")
class SignGuard(Weighted, Pipeline):
    """The mean of updates with usual lengths and shares of signs, clipped to the median length.

    Needs scikit-learn. `weighted` is about the mean; who is usual is decided without weights.
    """

    shortest: Lower = setting("the least length of a usual update, in units of the median", default=0.1)
    longest: Upper = setting("the greatest length of a usual update, in units of the median", default=3.0)
    coordinate_share: Part = setting(
        "the share of coordinates whose signs are counted, drawn in each round", default=0.1
    )

    def steps(self) -> list[Step | None]:
        """One step that chooses, clips and averages."""
        return [RoundAggregation("signguard", self._aggregate, "unusual in its length or its signs")]

    def _aggregate(self, round: Round, updates: Tensor, weights: Tensor) -> Aggregate:
        generator = numpy_rng(self.seed, "signguard", round.number)
        return signguard(updates, generator, self.coordinate_share, self.shortest, self.longest, weights)

    def check_settings(self) -> None:
        """MeanShift is scikit-learn's."""
        super().check_settings()
        require("sklearn")
