"""Zeno++ in rounds: the server's gradient scores every update, rescaled to the gradient's length."""

from __future__ import annotations

from typing import ClassVar

from thistle.strategies.registry import setting, strategy
from thistle.strategies.rounds import Step
from thistle.strategies.rules.fedavg import FedAvg
from thistle.strategies.steps.aggregation import Aggregation
from thistle.strategies.steps.filters import ZenoFilter


@strategy("zeno", "Xie et al. 2020 (Zeno++)")
class Zeno(FedAvg):
    """Updates rescaled, scored on server data; the mean of those that pass."""

    weighted: bool = setting("whether clients weigh by their number of examples", default=False)
    filter: ClassVar[str] = "zeno"  # type: ignore[misc, assignment]  # not to be chosen: it is the rule

    def steps(self) -> list[Step | None]:
        """The filter, then the mean."""
        return [ZenoFilter(self.rho, self.epsilon), Aggregation("mean", self.rule, mixes=True)]

    def server_data_for(self) -> str:
        """The server's gradient."""
        return "strategy.name = zeno"
