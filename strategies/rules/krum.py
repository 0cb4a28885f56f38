"""Krum: one update, the one that lies best among its neighbours."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from thistle.experiments.settings import Natural
from thistle.strategies.aggregators import Aggregate, krum
from thistle.strategies.pipeline import Pipeline
from thistle.strategies.registry import setting, strategy
from thistle.strategies.steps.class_aware import ClassAware


@strategy("krum", "Blanchard et al. 2017")
class Krum(ClassAware, Pipeline):
    """The update nearest to its neighbours."""

    malicious: Natural = setting("f, the number of malicious replies per round that it withstands", default=1)
    mixes = True
    leaves_out = "not selected"

    def rule(self, updates: Tensor, weights: Tensor | None, **mixing: Any) -> Aggregate:
        """The update with the least sum of squared distances to its n − f − 2 nearest."""
        return krum(updates, self.malicious, **mixing)

    def least_updates(self) -> int:
        """The paper's bound."""
        return 2 * self.malicious + 3

    def always_excludes(self, replies: int) -> tuple[int, str]:
        """All but one."""
        return replies - 1, "strategy.name = krum"
