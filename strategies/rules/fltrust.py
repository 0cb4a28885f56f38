"""FLTrust: the server trains on its own data too, and clients count as far as they go its way."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from thistle.strategies import aggregators
from thistle.strategies.pipeline import Pipeline
from thistle.strategies.registry import strategy
from thistle.strategies.rounds import Progress, Round, Step
from thistle.strategies.steps.aggregation import aggregated, kept_updates, nothing

AGAINST = "no trust: it does not go the way of the server's own update"


@strategy("fltrust", "Cao et al. 2021")
class FLTrust(Pipeline):
    """Weighted by the cosine with the server's own update."""

    mixable = False

    def steps(self) -> list[Step | None]:
        """One step that weighs and sums."""
        return [TrustByCosine()]

    def uses_rate(self) -> bool:
        """For the server's own update."""
        return True

    def server_data_for(self) -> str:
        """The server's own update."""
        return "strategy.name = fltrust"


@dataclass(frozen=True)
class TrustByCosine:
    """Weights ReLU(cos(Δ_i, Δ_0)), each Δ_i rescaled to ‖Δ_0‖, Δ_0 the server's own local update."""

    stage: ClassVar[str] = "aggregate"

    def __call__(self, round: Round, progress: Progress) -> Progress:
        assert round.server is not None, "checked when the strategy was built"
        if not progress.kept.any():
            return nothing(progress)
        reference = round.server.learn(round.model, round.lr) - round.model
        trusted = aggregators.fltrust(kept_updates(progress), reference)
        found = aggregated(round, progress, trusted, "fltrust", leaves_out=AGAINST)
        return replace(found, voters=found.mattered())  # the server's data spoke against the others
