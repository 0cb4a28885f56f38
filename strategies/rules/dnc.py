"""DnC: the updates without those that stand out where the updates differ most."""

from __future__ import annotations

from torch import Tensor

from thistle.experiments.randomness import numpy_rng
from thistle.experiments.settings import AboveZero, Natural, Positive
from thistle.strategies.aggregators import Aggregate, dnc
from thistle.strategies.aggregators.spectral import dropped_by_dnc
from thistle.strategies.pipeline import Pipeline, Weighted
from thistle.strategies.registry import setting, strategy
from thistle.strategies.rounds import Round, Step
from thistle.strategies.steps.aggregation import RoundAggregation
from thistle.strategies.steps.class_aware import ClassAware


@strategy("dnc", "Shejwalkar and Houmansadr 2021")
class DnC(ClassAware, Weighted, Pipeline):
    """The mean without outliers along the updates' main direction (divide and conquer).

    `weighted` is about the mean; outliers are looked for without weights.
    """

    malicious: Natural = setting("f, the number of malicious replies per round that it withstands", default=1)
    drop_factor: AboveZero = setting("c: every repeat drops the c·f clients that stand out most", default=1.0)
    coordinates: Positive = setting("how many coordinates each repeat looks at, newly drawn each time", default=10_000)
    repeats: Positive = setting("the number of repeats; a client must pass all of them", default=1)

    def steps(self) -> list[Step | None]:
        """One step that chooses and averages."""
        return [RoundAggregation("dnc", self._aggregate, "stands out along the updates' main direction")]

    def _aggregate(self, round: Round, updates: Tensor, weights: Tensor) -> Aggregate:
        generator = numpy_rng(self.seed, "dnc", round.number)
        return dnc(updates, self.malicious, generator, self.drop_factor, self.coordinates, self.repeats, weights)

    def least_updates(self) -> int:
        """More honest replies than others, and somebody is left."""
        return max(2 * self.malicious, dropped_by_dnc(self.malicious, self.drop_factor)) + 1

    def is_mean(self) -> bool:
        """Only where it drops nobody."""
        return not self.malicious

    def always_excludes(self, replies: int) -> tuple[int, str]:
        """Those that one repeat drops."""
        return dropped_by_dnc(self.malicious, self.drop_factor), f"strategy.malicious = {self.malicious}"
