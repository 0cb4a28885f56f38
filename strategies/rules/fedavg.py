"""The mean of the updates, and the class that all means share."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from thistle.experiments.errors import UserError
from thistle.experiments.settings import Value
from thistle.protocol.training import REPORT_CLASSES
from thistle.strategies.aggregators import Aggregate, mean
from thistle.strategies.pipeline import Pipeline, Weighted
from thistle.strategies.registry import setting, strategy
from thistle.strategies.rounds import Step
from thistle.strategies.steps.class_aware import ClassAwareHead


@strategy("fedavg", "McMahan et al. 2017")
class FedAvg(Weighted, Pipeline):
    """The mean of the updates, weighted by data size."""

    weighted: bool = setting("whether clients weigh by their number of examples", default=True)
    class_aware: bool = setting(
        "whether each row of the model's last layer is averaged by how many examples of its class a client has; "
        "clients then tell the server how many examples of each class they hold",
        default=False,
    )
    prior_delta: float = 1e-3
    """What a class weighs of which a client has no example."""

    mixes = True

    def rule(self, updates: Tensor, weights: Tensor | None, **mixing: Any) -> Aggregate:
        """Σ w_i Δ_i."""
        return mean(updates, weights, **mixing)

    def option_steps(self) -> list[Step]:
        """With the class-aware head where it is asked for."""
        head: list[Step] = [ClassAwareHead(self.prior_delta)] if self.class_aware else []
        return [*super().option_steps(), *head]

    def terms(self) -> dict[str, Value]:
        """Clients are asked for their class counts only where they are needed."""
        return {**super().terms(), **({REPORT_CLASSES: True} if self.class_aware else {})}

    def is_mean(self) -> bool:
        """Unless Zeno or adaptive clipping bounds the length of a single update."""
        return not self.limits_length

    def check_settings(self) -> None:
        """Mixed rows have no class counts."""
        super().check_settings()
        if self.class_aware and self.mixing:
            raise UserError(f"strategy.pre = {self.pre}: strategy.class-aware needs each client's own update; use none")
