"""From the kept updates to one change of the model, by any rule that needs nothing but the updates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from thistle.experiments.errors import UserError
from thistle.strategies.aggregators import Aggregate, NumpyAggregate
from thistle.strategies.rounds import Progress, Round

Rule = Callable[..., Aggregate | Tensor]
"""(kept updates, their prior weights) → the aggregate, or just its vector."""

NEGLIGIBLE = 0.1
"""A client whose weight is below this part of its share by the prior counts as excluded by the aggregate."""


@dataclass(frozen=True)
class Aggregation:
    """A rule as a step.

    After a pre-step the rule gets the mixed rows. One that `mixes` gets the clients' own rows and the matrix instead,
    as its argument `mixing`, which saves a copy of the block.
    """

    name: str
    rule: Rule
    coordinatewise: bool = False
    mixes: bool = False
    stage: ClassVar[str] = "aggregate"
    takes_mixing: ClassVar[bool] = True

    def __call__(self, round: Round, progress: Progress) -> Progress:
        if not progress.kept.any():
            return nothing(progress)
        return aggregated(round, progress, self._apply(round, progress), self.name, self.coordinatewise)

    def _apply(self, round: Round, progress: Progress) -> Aggregate:
        updates, mixing = kept_updates(progress), progress.mixing
        prior, size = round.prior[progress.kept], updates.shape[1]
        if mixing is None:
            return _whole(self.name, self.rule(updates, prior), len(prior), size)
        if self.mixes:
            return _whole(self.name, self.rule(updates, None, mixing=mixing), len(prior), size)
        count = len(mixing)
        uniform = torch.full((count,), 1 / count, dtype=torch.float64)
        found = _whole(self.name, self.rule(mixing.to(updates.dtype) @ updates, uniform), count, size)
        return Aggregate(found.vector, mixing.T @ found.weights)


@dataclass(frozen=True)
class RoundAggregation:
    """A rule that also looks at the round: its number, the model that was sent, the model's layers."""

    name: str
    rule: Callable[[Round, Tensor, Tensor], Aggregate]
    """(round, kept updates, their prior weights) → the aggregate."""
    stage: ClassVar[str] = "aggregate"

    def __call__(self, round: Round, progress: Progress) -> Progress:
        if not progress.kept.any():
            return nothing(progress)
        found = self.rule(round, kept_updates(progress), round.prior[progress.kept])
        return aggregated(round, progress, found, self.name)


def _whole(name: str, found: object, rows: int, size: int) -> Aggregate:
    """A rule that returns a vector alone says nothing of weights: all had the same."""
    if isinstance(found, Aggregate):
        return found
    if isinstance(found, NumpyAggregate):
        return Aggregate(torch.from_numpy(found.vector), torch.from_numpy(found.weights))
    if isinstance(found, np.ndarray):
        found = torch.from_numpy(found)
    if not isinstance(found, Tensor) or found.shape != (size,):
        what = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise UserError(f"{name}: its rule should return a tensor of {size} values, or an Aggregate, not {what}")
    return Aggregate(found, torch.full((rows,), 1 / rows, dtype=torch.float64))


def kept_updates(progress: Progress) -> Tensor:
    """The kept rows; no copy where all are."""
    return progress.updates if bool(progress.kept.all()) else progress.updates[progress.kept]


def scored(progress: Progress, scores: Tensor) -> Progress:
    """With the aggregator's scores of the kept clients, where no filter gave any."""
    if progress.scores is not None:
        return progress
    whole = torch.full((len(progress.kept),), float("nan"), dtype=torch.float64)
    whole[progress.kept] = scores
    return replace(progress, scores=whole)


def nothing(progress: Progress) -> Progress:
    """Nobody is left to aggregate: the model stays where it is."""
    return replace(progress, weights=torch.zeros(len(progress.kept), dtype=torch.float64))


def aggregated(round: Round, progress: Progress, found: Aggregate, name: str, coordinatewise: bool = False) -> Progress:
    """The aggregate, with the weights of all clients; whom it gave next to nothing counts as filtered by it.

    The buffers of such a client still count. Krum chooses one client, whose buffers nobody could check; a filter's
    verdict goes by the server's data and is final.
    """
    prior, weights = round.prior, torch.zeros(len(progress.kept), dtype=torch.float64)
    weights[progress.kept] = found.weights
    voters = progress.kept
    progress = progress if found.scores is None else scored(progress, found.scores)
    progress = replace(progress, step=found.vector, weights=weights, voters=voters, coordinatewise=coordinatewise)
    negligible = progress.kept & (weights < NEGLIGIBLE * prior / prior[progress.kept].sum())
    return progress.drop(negligible, name)
