"""From the kept updates to one change of the model, by any rule that needs only the updates."""

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
from thistle.strategies.steps.words import against_cut

Rule = Callable[..., Aggregate | Tensor]
"""(kept updates, their prior weights) → the aggregate, or just its vector."""

NEGLIGIBLE = 0.1
"""A weight below this part of the client's share by the prior is next to none."""


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
    leaves_out: str = ""
    """Why a client has no weight at all, in words, where the rule selects clients; empty: it only weighs them."""
    stage: ClassVar[str] = "aggregate"
    takes_mixing: ClassVar[bool] = True

    def __call__(self, round: Round, progress: Progress) -> Progress:
        if not progress.kept.any():
            return nothing(progress)
        found = self._apply(round, progress)
        return aggregated(round, progress, found, self.name, self.coordinatewise, self.leaves_out)

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
    leaves_out: str
    """Why a client gets no weight at all, in words: such rules select."""
    stage: ClassVar[str] = "aggregate"

    def __call__(self, round: Round, progress: Progress) -> Progress:
        if not progress.kept.any():
            return nothing(progress)
        found = self.rule(round, kept_updates(progress), round.prior[progress.kept])
        return aggregated(round, progress, found, self.name, leaves_out=self.leaves_out)


def _whole(name: str, found: object, rows: int, size: int) -> Aggregate:
    """A rule that returns only a vector reports no weights: all had the same."""
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


def nothing(progress: Progress, name: str = "") -> Progress:
    """Nobody is left to aggregate, or the step of this name gave nobody any weight: the model stays where it is."""
    weights = torch.zeros(len(progress.kept), dtype=torch.float64)
    faint = dict.fromkeys(progress.kept.nonzero().flatten().tolist(), "nobody has any weight")
    return replace(progress, weights=weights, voters=torch.zeros_like(progress.kept), faint=faint, weighed_by=name)


def aggregated(
    round: Round,
    progress: Progress,
    found: Aggregate,
    name: str,
    coordinatewise: bool = False,
    leaves_out: str = "",
) -> Progress:
    """The aggregate, with the weights of all clients, and who has next to none.

    A rule that selects (`leaves_out` says why, in words) filters out those to whom it gives no weight at all. Their
    buffers still count: Krum chooses one client, whose buffers nobody could check; a filter's verdict goes by the
    server's data and is final.
    """
    prior, weights = round.prior, torch.zeros(len(progress.kept), dtype=torch.float64)
    weights[progress.kept] = found.weights
    voters = progress.kept
    progress = progress if found.scores is None else scored(progress, found.scores)
    progress = replace(progress, step=found.vector, weights=weights, voters=voters, coordinatewise=coordinatewise)
    shares = prior / prior[progress.kept].sum()
    negligible = weights < NEGLIGIBLE * prior / prior[progress.kept].sum()
    if leaves_out:
        progress = _select(progress, found, weights == 0, name, leaves_out)
    rows = (negligible & progress.kept).nonzero().flatten().tolist()
    faint = {row: f"weight {float(weights[row]):.2g} of {float(shares[row]):.2g}" for row in rows}
    return replace(progress, faint=faint, weighed_by=name)


def _select(progress: Progress, found: Aggregate, rows: Tensor, name: str, why: str) -> Progress:
    """Without these rows; where the rule went by its scores, with the cut that they missed."""
    cut = _cut(found)
    if found.scores is None or cut is None:
        return progress.drop(rows, name, why)
    scores = torch.full((len(rows),), float("nan"), dtype=torch.float64)
    scores[progress.kept] = found.scores.double()
    if progress.thresholds is None:  # no filter before it has said something else
        progress = replace(progress, thresholds=torch.full_like(scores, cut))
    return progress.drop(rows, name, lambda row: f"{why}: {against_cut(float(scores[row]), cut)}")


def _cut(found: Aggregate) -> float | None:
    """The worst score that was selected; None where selected and others cannot be told apart by their scores."""
    if found.scores is None or not bool((found.weights == 0).any()) or not bool((found.weights > 0).any()):
        return None
    chosen, others = found.scores[found.weights > 0], found.scores[found.weights == 0]
    if bool(others.max() <= chosen.min()):
        return float(chosen.min())
    return float(chosen.max()) if bool(others.min() >= chosen.max()) else None
