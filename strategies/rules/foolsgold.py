"""FoolsGold: sybils push the same way for many rounds, honest clients do not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from thistle.strategies import aggregators
from thistle.strategies.pipeline import Pipeline
from thistle.strategies.registry import strategy
from thistle.strategies.rounds import Progress, Round, Step
from thistle.strategies.steps.aggregation import aggregated, kept_updates, nothing
from thistle.strategies.steps.class_aware import ClassAware


@strategy("foolsgold", "Fung et al. 2020")
class FoolsGold(ClassAware, Pipeline):
    """Clients with similar updates share one vote."""

    mixable = False

    def steps(self) -> list[Step | None]:
        """One step that weighs and sums."""
        return [OneVotePerDirection()]

    def is_mean(self) -> bool:
        """Its weights do not go by lengths."""
        return not self.limits_length


@dataclass(frozen=True)
class OneVotePerDirection:
    """Clients whose summed updates point the same way share one vote; the sums are kept for every client seen."""

    stage: ClassVar[str] = "aggregate"

    def __call__(self, round: Round, progress: Progress) -> Progress:
        ids = [client for client, kept in zip(round.ids, progress.kept, strict=True) if kept]
        if not ids:
            return nothing(progress)
        updates = kept_updates(progress)
        history = updates.clone()
        for row, client in zip(history, ids, strict=True):
            past = round.memory.get(f"foolsgold/{client}")
            if past is not None:
                row.add_(torch.from_numpy(past))
        weights = aggregators.foolsgold(aggregators.gram(history, centred=False))
        sums = {f"foolsgold/{client}": row.numpy().copy() for client, row in zip(ids, history, strict=True)}
        if not bool((weights > 0).any()):
            return nothing(progress, "foolsgold").note(**sums)
        return aggregated(round, progress, aggregators.mean(updates, weights), "foolsgold").note(**sums)
