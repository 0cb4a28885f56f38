"""Steps that look at updates layer by layer: cut to a rank, DSVD-FL's and FedCPA's weighting."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from thistle.protocol.factors import is_matrix, layer_rank, pays, sides
from thistle.protocol.layout import Layout
from thistle.strategies import aggregators
from thistle.strategies.aggregators import Aggregate, Matrix
from thistle.strategies.rounds import Progress, Round
from thistle.strategies.steps import aggregated, kept_updates, nothing


def matrices_of(layout: Layout) -> tuple[Matrix, ...]:
    """Where the flat vector's matrix layers are."""
    found, start = [], 0
    for entry in layout.trained:
        if is_matrix(entry):
            found.append((start, *sides(entry)))
        start += entry.size
    return tuple(found)


@dataclass(frozen=True)
class LowRank:
    """Every update cut to its client's rank, before any other step sees it.

    Clients that sent factors have cut most of their layers themselves. `decompose`: singular values and directions
    are kept for the aggregator.
    """

    matrices: tuple[Matrix, ...]
    factors: bool
    decompose: bool

    def __call__(self, round: Round, progress: Progress) -> Progress:
        fractions = torch.ones(len(round.ids)).double() if round.ranks is None else round.ranks
        ranks = torch.tensor([[layer_rank(f, *m[1:]) for m in self.matrices] for f in fractions.tolist()])
        ranks = ranks.reshape(len(fractions), len(self.matrices)).long()
        whole = torch.tensor(
            [[self._came_whole(int(k), m) for k, m in zip(r, self.matrices, strict=True)] for r in ranks]
        )
        whole = whole.reshape(ranks.shape).bool()
        if not self.decompose:
            aggregators.truncate(progress.updates, self.matrices, ranks * whole)
            return progress
        return replace(progress, spectra=aggregators.decompose(progress.updates, self.matrices, ranks, whole))

    def _came_whole(self, rank: int, matrix: Matrix) -> bool:
        rows, columns = matrix[1:]
        return rank < min(rows, columns) and not (self.factors and pays(rank, rows, columns))


@dataclass(frozen=True)
class SimilarityWeighting:
    """DSVD-FL's aggregator: softmax of how alike each update is to the others, times the prior."""

    alpha: tuple[float, ...] | None
    """α₁, α₂, α₃; None: adapted in every round."""
    relative: bool
    temperature: float

    def __call__(self, round: Round, progress: Progress) -> Progress:
        if not progress.kept.any():
            return nothing(progress)
        assert progress.spectra is not None, "LowRank comes first"
        updates = kept_updates(progress)
        pairs = aggregators.similarities(updates, progress.spectra.rows(progress.kept), self.relative)
        terms = aggregators.mean_similarities(pairs)
        alpha = aggregators.adapted_alpha(terms) if self.alpha is None else torch.tensor(self.alpha, dtype=terms.dtype)
        scores, weights = aggregators.similarity_weights(terms, alpha, self.temperature)
        found = aggregators.mean(updates, weights * round.prior[progress.kept])
        progress = aggregated(round, _scored(progress, scores), found, "dsvd")
        if self.alpha is not None:
            return progress
        vectors, values, whole = alpha.tolist()
        return progress.measure(alpha_vectors=vectors, alpha_values=values, alpha_updates=whole)


@dataclass(frozen=True)
class CriticalParameters:
    """FedCPA's aggregator: x_t plus the mean of w_i Δ_i over the clients with a weight above 0."""

    matrices: tuple[Matrix, ...]

    def __call__(self, round: Round, progress: Progress) -> Progress:
        if not progress.kept.any():
            return nothing(progress).note(**self._memo(round))
        updates, prior = kept_updates(progress), round.prior[progress.kept]
        last = round.memory.get("fedcpa.model")
        step = None if last is None else self._columns(round.model - torch.from_numpy(last))
        totals, weights = aggregators.critical_weights(self._columns(updates), self._columns(round.model), step)
        shares = weights * prior / prior[weights > 0].sum()
        found = Aggregate(aggregators.combine(updates, shares), shares)
        return aggregated(round, _scored(progress, totals), found, "fedcpa").note(**self._memo(round))

    def _columns(self, values: Tensor) -> Tensor:
        """The entries of matrix layers."""
        return torch.cat(
            [values[..., start : start + rows * columns] for start, rows, columns in self.matrices], dim=-1
        )

    def _memo(self, round: Round) -> dict[str, np.ndarray]:
        return {"fedcpa.model": round.model.numpy().copy()}


def _scored(progress: Progress, scores: Tensor) -> Progress:
    """With the aggregator's scores, where no filter gave any."""
    if progress.scores is not None:
        return progress
    whole = torch.full((len(progress.kept),), float("nan"), dtype=torch.float64)
    whole[progress.kept] = scores
    return replace(progress, scores=whole)
