"""Bant: each update is tried on the server's data, and counts by the trust its client has earned there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch

from thistle.experiments.settings import Fraction
from thistle.strategies import aggregators
from thistle.strategies.aggregators import Aggregate
from thistle.strategies.aggregators.trial import trial_trust
from thistle.strategies.memory.per_client import PerClient
from thistle.strategies.pipeline import Pipeline
from thistle.strategies.registry import setting, strategy
from thistle.strategies.rounds import Progress, Round, Step
from thistle.strategies.steps.aggregation import aggregated, kept_updates, nothing

TRUST = PerClient("bant.trust", unseen=np.nan)


@strategy("bant", "Molodtsov et al. 2025")
class Bant(Pipeline):
    """Weighted by trust, earned by lowering the loss on server data.

    Trust takes the place of data sizes, so there is no `weighted`. A client that lowers the loss may be as long as the
    guard lets it, whatever else its update does.
    """

    trust_rate: Fraction = setting("β: how much of a client's trust comes from this round", default=0.5)
    mixable = False

    def steps(self) -> list[Step | None]:
        """One step that tries, weighs and sums."""
        return [TrialAndTrust(self.trust_rate)]

    def is_mean(self) -> bool:
        """Its weights do not go by lengths."""
        return True

    def server_data_for(self) -> str:
        """The trials."""
        return "strategy.name = bant"


@dataclass(frozen=True)
class TrialAndTrust:
    """Σ w_i Δ_i with weights by trust ω_i, for those with f0(x + Δ_i) < f0(x); a stranger's trust is 1/N."""

    beta: float
    stage: ClassVar[str] = "aggregate"

    def __call__(self, round: Round, progress: Progress) -> Progress:
        server, kept = round.server, progress.kept
        assert server is not None, "checked when the strategy was built"
        if not kept.any():
            return nothing(progress)
        ids = [client for client, stays in zip(round.ids, kept.tolist(), strict=True) if stays]
        updates, now = kept_updates(progress), server.loss(round.model)
        gains = torch.tensor([now - server.loss(round.model + row) for row in updates], dtype=torch.float64)
        known = TRUST.of(round.memory, ids)
        before = torch.from_numpy(np.where(np.isnan(known), 1 / max(round.connected, len(ids)), known))
        trust, weights = trial_trust(gains, before, self.beta)
        found = Aggregate(aggregators.combine(updates, weights), weights, gains)
        done = aggregated(round, progress, found, "bant", leaves_out="did not lower the server's loss").note(
            **TRUST.after(round.memory, ids, trust.numpy())
        )
        return replace(done, voters=done.kept)  # the server's data spoke against the others
