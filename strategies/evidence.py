"""Evidence: a client is judged by all that it has sent so far, not by one update.

In every round, with updates Δ_i and the server's data at the model x that was sent:

    s_i ← how far Δ_i agrees with learning on some mixture of the server's classes        (steps/agreement.py)
    p_i ← P(client i is honest | its agreement, direction and length in all rounds)        (steps/kinds.py)
    x   ← x + Clip_τ(GeoMed of the Δ_i with p_i > ½, weighted by p_i, in bounded lengths)  (steps/evidence.py)
    x   ← x + Clip_τ(LocalSGD(γ_t f0, x) − x),  γ_t = γ·max(0, 1 − (t − 1)/T)             in the first T rounds

Nothing needs to be known of the attack, nor how many attack. The last line ends after T rounds because a server that
goes on learning on the data it judges by turns its own compass (docs/papers.md has the derivation).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from thistle.experiments.settings import NonNegative, Positive
from thistle.strategies.pipeline import Pipeline
from thistle.strategies.registry import setting, strategy
from thistle.strategies.rounds import Step
from thistle.strategies.steps import Clip, ServerLearning
from thistle.strategies.steps.class_aware import ClassAware
from thistle.strategies.steps.evidence import Evidence as EvidenceStep


@strategy("evidence", "Thistle")
class Evidence(ClassAware, Pipeline):
    """Judges clients by their record over all rounds; the geometric median of those it trusts."""

    anchor: Literal["server-data", "majority"] = setting(
        "what a client's record is compared with: the classes of the server's data or, if there are none, "
        "the direction of the majority of a round (which must then be honest)",
        default="server-data",
    )
    memory_rounds: Positive = setting("how many of a client's rounds its record covers", default=8)
    tau: NonNegative = setting(
        "τ: the length to which the aggregate and the server's learning step are clipped; 0: no clipping", default=1.0
    )
    gamma: NonNegative = setting(
        "γ of server learning: its learning rate in units of the clients'; 0: none", default=0.5
    )
    gamma_schedule: Literal["constant", "falling", "late"] = setting(
        "whether γ stays constant, falls to 0 over the first `gamma-rounds`, or is 0 until they are over",
        default="falling",
    )
    mixable = False

    def steps(self) -> list[Step | None]:
        """Judge and aggregate, clip, learn."""
        return [
            EvidenceStep(self.memory_rounds, self.anchor),
            Clip(self.tau),
            self.server_learning(),
        ]

    def server_learning(self) -> ServerLearning:
        """None without server data."""
        learning = super().server_learning()
        return learning if self.anchor == "server-data" else replace(learning, gamma=0.0)

    def server_data_for(self) -> str:
        """The anchor asks for them."""
        if self.anchor == "server-data":
            return "strategy.anchor = server-data"
        return "strategy.batch-norm = server" if self.batch_norm == "server" else ""
