"""Updates cut to a rank, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from thistle.protocol.factors import layer_rank, pays
from thistle.strategies import aggregators
from thistle.strategies.aggregators import Matrix
from thistle.strategies.aggregators.spectra import Sees
from thistle.strategies.rounds import Progress, Round


@dataclass(frozen=True)
class LowRank:
    """Every update cut to its client's rank, before any other step sees it.

    Clients that sent factors have cut most of their layers themselves.
    """

    factors: bool
    decompose: Sees | None = None
    """What is kept of the spectra for the aggregator; None: nothing."""
    cuts: bool = True
    """Whether the updates themselves are cut, and not only what is kept of their spectra."""
    stage: ClassVar[str] = "cut"

    def __call__(self, round: Round, progress: Progress) -> Progress:
        fractions = torch.ones(len(round.ids)).double() if round.ranks is None else round.ranks
        ranks = torch.tensor([[layer_rank(f, *m[1:]) for m in round.matrices] for f in fractions.tolist()])
        ranks = ranks.reshape(len(fractions), len(round.matrices)).long()
        whole = torch.tensor(
            [[self._came_whole(int(k), m) for k, m in zip(r, round.matrices, strict=True)] for r in ranks]
        )
        whole = whole.reshape(ranks.shape).bool()
        if not self.decompose:
            aggregators.truncate(progress.updates, round.matrices, ranks * whole)
            return progress
        write = whole & self.cuts
        spectra = aggregators.decompose(progress.updates, round.matrices, ranks, write, self.decompose)
        return replace(progress, spectra=spectra)

    def _came_whole(self, rank: int, matrix: Matrix) -> bool:
        rows, columns = matrix[1:]
        return rank < min(rows, columns) and not (self.factors and pays(rank, rows, columns))
