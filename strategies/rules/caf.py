"""CAF: clients lose weight along the direction in which the updates vary most."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from thistle.experiments.settings import Natural
from thistle.strategies.aggregators import Aggregate, caf
from thistle.strategies.pipeline import Pipeline
from thistle.strategies.registry import setting, strategy
from thistle.strategies.steps.class_aware import ClassAware


@strategy("caf", "Allouah et al. 2025 (CAF)")
class CAF(ClassAware, Pipeline):
    """The mean with the least variance after down-weighting clients along the updates' main direction."""

    malicious: Natural = setting("f, the number of malicious replies per round that it withstands", default=1)
    mixes = True

    def rule(self, updates: Tensor, weights: Tensor | None, **mixing: Any) -> Aggregate:
        """The mean whose covariance has the least largest eigenvalue."""
        return caf(updates, self.malicious, **mixing)

    def least_updates(self) -> int:
        """A majority must be honest."""
        return 2 * self.malicious + 1
