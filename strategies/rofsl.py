"""RoFSL: robust federated learning with the help of a small data set at the server.

In every round, with updates Δ_i, the server's gradient g0 and step sizes as in the paper:

    x̄ = x + Clip_τ(GeoMed(Filter(Δ)))                    what most clients that the server's data agree with say
    x ← x̄ + Clip_τ(LocalSGD(γ f0, x̄) − x̄)               then the server learns on its own data
"""

from __future__ import annotations

from typing import Literal

from thistle.experiments.errors import UserError
from thistle.experiments.settings import NonNegative
from thistle.strategies.aggregators import geometric_median, mean
from thistle.strategies.options import Cosine, Share
from thistle.strategies.pipeline import Pipeline, Weighted
from thistle.strategies.registry import setting, strategy
from thistle.strategies.rounds import Step
from thistle.strategies.steps import Aggregation, AngleFilter, Clip, LossFilter
from thistle.strategies.steps.class_aware import ClassAware
from thistle.strategies.steps.compass import RememberDirections
from thistle.strategies.steps.share import MaliciousShare


@strategy("rofsl", "RoFSL")
class RoFSL(ClassAware, Weighted, Pipeline):
    """Loss (or angle) filter, geometric median, clip, server learning."""

    filter: Literal["loss", "angle", "none"] = setting(
        "which updates are kept: `loss` drops the share θ with the lowest −⟨Δ, g0⟩ − ρ‖Δ‖², "
        "`angle` those whose cosine with −g0 is below α",
        default="loss",
    )
    rho: NonNegative = setting(
        "ρ of the loss filter: the weight of an update's squared length in its score", default=0.1
    )
    theta: Share | Literal["auto"] = setting(
        "θ of the loss filter: the share of replies that is dropped, lowest scores first; "
        "`auto`: as many as the scores of all rounds so far suggest",
        default=0.5,
    )
    compass: Literal["gradient", "corrected"] = setting(
        "what the loss filter judges by: g0, or g0 without the effect of server learning "
        "([decoupled](papers.md#rofsl-decoupled))",
        default="gradient",
    )
    length: Literal["short", "server"] = setting(
        "which lengths the loss filter prefers: short, or that of the server's own step at the clients' rate",
        default="short",
    )
    angle: Cosine = setting("α of the angle filter: the least cosine with the server's descent direction", default=0.0)
    aggregator: Literal["geometric-median", "mean"] = setting(
        "how the kept updates are combined", default="geometric-median"
    )
    tau: NonNegative = setting(
        "τ: the length to which the aggregate and the server's learning step are clipped; 0: no clipping", default=1.0
    )
    gamma: NonNegative = setting(
        "γ of server learning: its learning rate in units of the clients'; 0: none", default=0.5
    )

    def steps(self) -> list[Step | None]:
        """Filter, aggregate, clip, learn."""
        filters: dict[str, Step | None] = {
            "loss": LossFilter(
                self.rho, MaliciousShare() if self.theta == "auto" else self.theta, self.compass, self.length
            ),
            "angle": AngleFilter(self.angle),
            "none": None,
        }
        rule = geometric_median if self.aggregator == "geometric-median" else mean
        return [
            filters[self.filter],
            Aggregation(self.aggregator, rule, mixes=True),
            Clip(self.tau),
            RememberDirections() if self.compass == "corrected" else None,
            self.server_learning(),
        ]

    def is_mean(self) -> bool:
        """Only where the paper's geometric median is replaced."""
        return self.aggregator == "mean" and not self.limits_length

    def uses_rate(self) -> bool:
        """For the server's learning, and for the length of its step."""
        return super().uses_rate() or self.length == "server"

    def check_settings(self) -> None:
        """What belongs to the loss filter needs it."""
        super().check_settings()
        for key, value, plain in (("compass", self.compass, "gradient"), ("length", self.length, "short")):
            if self.filter != "loss" and value != plain:
                raise UserError(f"strategy.{key} = {value}: only the loss filter has it; set strategy.filter = loss")
