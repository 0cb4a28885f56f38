"""Multi-Krum: the mean of the updates with the best of Krum's scores."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from thistle.experiments.settings import Natural
from thistle.strategies.aggregators import Aggregate, multi_krum
from thistle.strategies.pipeline import Pipeline
from thistle.strategies.registry import setting, strategy
from thistle.strategies.steps.class_aware import ClassAware


@strategy("multi-krum", "Blanchard et al. 2017")
class MultiKrum(ClassAware, Pipeline):
    """The mean of the n − f updates nearest to their neighbours."""

    malicious: Natural = setting("f, the number of malicious replies per round that it withstands", default=1)
    mixes = True
    leaves_out = "not selected"

    def rule(self, updates: Tensor, weights: Tensor | None, **mixing: Any) -> Aggregate:
        """The mean of the n − f best by Krum's score."""
        return multi_krum(updates, self.malicious, **mixing)

    def least_updates(self) -> int:
        """The paper's bound."""
        return 2 * self.malicious + 3

    def always_excludes(self, replies: int) -> tuple[int, str]:
        """The f that it does not select."""
        return self.malicious, f"strategy.malicious = {self.malicious}"
