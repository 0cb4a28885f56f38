"""MDA: minimum-diameter averaging."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field
from torch import Tensor

from thistle.strategies.aggregators import Aggregate, mda
from thistle.strategies.aggregators.diameter import MOST
from thistle.strategies.pipeline import Pipeline
from thistle.strategies.registry import setting, strategy
from thistle.strategies.steps.class_aware import ClassAware


@strategy("mda", "El Mhamdi et al. 2020")
class MDA(ClassAware, Pipeline):
    """The mean of the n − f updates whose two farthest are nearest to each other."""

    malicious: Annotated[int, Field(ge=0, le=MOST)] = setting(
        "f, the number of malicious replies per round that it withstands; its search takes time 2^f", default=1
    )
    mixes = True
    leaves_out = "not selected"

    def rule(self, updates: Tensor, weights: Tensor | None, **mixing: Any) -> Aggregate:
        """The mean of the n − f updates of least diameter."""
        return mda(updates, self.malicious, **mixing)

    def least_updates(self) -> int:
        """A majority must be honest."""
        return 2 * self.malicious + 1

    def always_excludes(self, replies: int) -> tuple[int, str]:
        """The f that it does not select."""
        return self.malicious, f"strategy.malicious = {self.malicious}"
