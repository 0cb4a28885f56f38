"""The median of every coordinate, and the weights that all rules by coordinate share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field
from torch import Tensor

from thistle.experiments.settings import Natural
from thistle.strategies.aggregators import Aggregate, cap_weights, coordinate_median
from thistle.strategies.pipeline import Pipeline, Weighted
from thistle.strategies.registry import setting, strategy

Cap = Annotated[float, Field(gt=0.0, le=1.0)]


@dataclass(kw_only=True, eq=False, repr=False)
class Capped(Weighted):
    """For rules that can weigh clients as long as nobody has too much weight: class Median(Capped, Pipeline)."""

    weighted: bool = setting(
        "whether clients weigh by their number of examples, none more than `strategy.weight-cap` allows", default=False
    )
    weight_cap: Cap | Literal["auto"] = setting(
        "the largest share that a client can have in the sum of all weights; the excess goes to the others. `auto`: "
        "f clients (`strategy.malicious`) cannot outvote the rest, 1/(2f + 1); nor have more than a trimmed mean cuts "
        "off at one end",
        default="auto",
    )
    malicious: Natural = setting(
        "f, the number of malicious replies per round that capped weights and the pre-steps withstand", default=1
    )

    def capped(self, weights: Tensor | None) -> Tensor | None:
        """The weights that count; None: all clients have the same."""
        if weights is None or not self.weighted:
            return None
        return cap_weights(weights, self.largest_share() if self.weight_cap == "auto" else self.weight_cap)

    def largest_share(self) -> float:
        """Of which f clients have less than half."""
        return 1 / (2 * self.malicious + 1)


@strategy("median", "Yin et al. 2018")
class Median(Capped, Pipeline):
    """The coordinate median, weighted if wanted."""

    coordinatewise = mixes = True

    def rule(self, updates: Tensor, weights: Tensor | None, **mixing: Any) -> Aggregate:
        """The median of every coordinate by itself."""
        return coordinate_median(updates, self.capped(weights), **mixing)
