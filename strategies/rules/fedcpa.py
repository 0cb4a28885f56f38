"""FedCPA: clients that agree on which weights matter most and least weigh more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from thistle.strategies import aggregators
from thistle.strategies.aggregators import Aggregate, Matrix
from thistle.strategies.pipeline import Pipeline, Weighted
from thistle.strategies.registry import strategy
from thistle.strategies.rounds import Progress, Round, Step
from thistle.strategies.steps.aggregation import aggregated, kept_updates, nothing, scored


@strategy("fedcpa", "Han et al. 2023")
class FedCPA(Weighted, Pipeline):
    """Weighted by agreement on the most and least important weights."""

    mixable = False

    def steps(self) -> list[Step | None]:
        """One step that weighs and sums."""
        return [CriticalParameters()]

    def is_mean(self) -> bool:
        """Its weights do not go by lengths."""
        return not self.limits_length


@dataclass(frozen=True)
class CriticalParameters:
    """FedCPA's aggregator: x_t plus the mean of w_i Δ_i over the clients with a weight above 0."""

    stage: ClassVar[str] = "aggregate"

    def __call__(self, round: Round, progress: Progress) -> Progress:
        if not progress.kept.any():
            return nothing(progress).note(**_memo(round))
        updates, prior = kept_updates(progress), round.prior[progress.kept]
        last = round.memory.get("fedcpa.model")
        step = None if last is None else _columns(round.matrices, round.model - torch.from_numpy(last))
        own, before = _columns(round.matrices, updates), _columns(round.matrices, round.model)
        totals, weights = aggregators.critical_weights(own, before, step)
        shares = weights * prior / prior[weights > 0].sum()
        found = Aggregate(aggregators.combine(updates, shares), shares)
        return aggregated(round, scored(progress, totals), found, "fedcpa").note(**_memo(round))


def _columns(matrices: Sequence[Matrix], values: Tensor) -> Tensor:
    """The entries of matrix layers."""
    return torch.cat([values[..., start : start + rows * columns] for start, rows, columns in matrices], dim=-1)


def _memo(round: Round) -> dict[str, np.ndarray]:
    return {"fedcpa.model": round.model.numpy().copy()}
