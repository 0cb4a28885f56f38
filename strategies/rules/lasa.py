"""LASA: every layer takes the clients whose length and signs are usual there."""

from __future__ import annotations

from functools import cache

from torch import Tensor

from thistle.experiments.settings import AboveZero
from thistle.protocol.factors import is_matrix
from thistle.protocol.layout import Layout
from thistle.strategies.aggregators import Aggregate, Layer, lasa
from thistle.strategies.options import Share
from thistle.strategies.pipeline import Pipeline, Weighted
from thistle.strategies.registry import setting, strategy
from thistle.strategies.rounds import Round, Step
from thistle.strategies.steps.aggregation import RoundAggregation


@strategy("lasa", "Xu et al. 2025")
class LASA(Weighted, Pipeline):
    """Clipped and sparsified updates; each layer averages the clients that are usual there.

    `weighted` is about the means; who is usual is decided without weights.
    """

    sparsity: Share = setting("the share of each update's weights, the smallest, that is set to 0", default=0.3)
    norm_bound: AboveZero = setting(
        "how far a layer's length may be from the median, in standard deviations", default=2.0
    )
    sign_bound: AboveZero = setting(
        "how far a layer's balance of signs may be from the median, in standard deviations", default=1.0
    )

    def steps(self) -> list[Step | None]:
        """One step that chooses and averages."""
        return [RoundAggregation("lasa", self._aggregate, "unusual in every layer")]

    def _aggregate(self, round: Round, updates: Tensor, weights: Tensor) -> Aggregate:
        assert round.layout is not None
        return lasa(updates, layers_of(round.layout), self.sparsity, self.norm_bound, self.sign_bound, weights)


@cache
def layers_of(layout: Layout) -> tuple[Layer, ...]:
    """Where the model's arrays are in the flat vector; matrices and convolutions are made sparse."""
    found, start = [], 0
    for entry in layout.trained:
        found.append(Layer(start, start + entry.size, is_matrix(entry)))
        start += entry.size
    return tuple(found)
