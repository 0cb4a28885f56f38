"""DSVD-FL: clients whose updates have similar singular vectors and values weigh more, at ranks that follow each
client's progress.

    s_ij = α₁ · (directions) + α₂ · (singular values) + α₃ · (the updates as a whole)
    w_i ∝ softmax(mean_j s_ij / T)

The scale `relative` makes the three comparable; `paper` is the paper to the letter.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from thistle.experiments.errors import UserError
from thistle.experiments.settings import AboveZero, Fraction
from thistle.strategies import aggregators
from thistle.strategies.options import Rank
from thistle.strategies.pipeline import Pipeline, Weighted
from thistle.strategies.registry import setting, strategy
from thistle.strategies.rounds import Progress, Round, Step
from thistle.strategies.steps.aggregation import aggregated, kept_updates, nothing, scored
from thistle.strategies.steps.class_aware import ClassAware
from thistle.strategies.steps.lowrank import LowRank

logger = logging.getLogger("thistle")
ALPHA = "0.34,0.33,0.33"
RELATIVE, PAPER = 0.1, 1.0
"""The temperatures of the two scales: the paper has none."""


@strategy("dsvd", "DSVD-FL")
class DSVD(ClassAware, Weighted, Pipeline):
    """Weighted by the similarity of the updates' singular vectors and values; ranks follow each client's progress."""

    exchange: Literal["auto", "full", "factors"] = setting(  # type: ignore[assignment]  # a choice more
        "whether clients send their models, or the truncated singular factors of their updates; "
        "`auto`: models with the scale `paper`, else factors",
        default="auto",
    )
    rank: Rank = setting("the part of each layer's full rank to which updates are cut, at the start", default=0.5)
    rank_step: Fraction = setting(
        "by how much a client's rank rises or falls after a round; 0: ranks stay", default=0.05
    )
    similarity_weights: str = setting(
        "what counts in the similarity of two updates: α₁ (directions of the singular vectors), α₂ (singular values) "
        "and α₃ (the updates as a whole), 0 or more, summing to 1; or `auto`: in every round those that separate the "
        "clients best",
        default=ALPHA,
    )
    scale: Literal["relative", "paper"] = setting(
        "`relative`: terms in comparable units, truncated updates; `paper`: the paper's raw terms, by which whole "
        "updates are weighed (α then need not sum to 1)",
        default="relative",
    )
    temperature: AboveZero | Literal["auto"] = setting(
        "weights are the softmax of similarity divided by it; smaller values are harsher; "
        "`auto`: 1.0 with the scale `paper`, else 0.1",
        default="auto",
    )
    mixable = False

    def steps(self) -> list[Step | None]:
        """Cut to each client's rank, then weigh by similarity."""
        usual = PAPER if self.scale == "paper" else RELATIVE
        temperature = usual if self.temperature == "auto" else self.temperature
        alpha = parse_similarity_weights(self.similarity_weights, self.scale)
        relative = self.scale == "relative"
        return [
            LowRank(self.factors, decompose="directions" if relative else "vectors", cuts=relative),
            SimilarityWeighting(alpha, relative, temperature),
        ]

    @property
    def by_factors(self) -> bool:
        """Unless whole updates are weighed."""
        return self.exchange == "factors" or (self.exchange == "auto" and self.scale == "relative")

    def check_settings(self) -> None:
        """Weights that are unusual, but allowed, are pointed out."""
        super().check_settings()
        if self.scale == "paper" and self.exchange == "factors":
            raise UserError(
                "strategy.exchange = factors: with strategy.scale = paper whole updates are weighed; use auto or full"
            )
        alpha = parse_similarity_weights(self.similarity_weights, self.scale)
        if alpha and abs(sum(alpha) - 1) > 1e-6:
            text = self.similarity_weights
            logger.warning("strategy.similarity-weights = %s: the sum is %g, not 1", text, sum(alpha))


@dataclass(frozen=True)
class SimilarityWeighting:
    """DSVD-FL's aggregator: softmax of each update's similarity to the others, times the prior."""

    alpha: tuple[float, ...] | None
    """α₁, α₂, α₃; None: adapted in every round."""
    relative: bool
    temperature: float
    stage: ClassVar[str] = "aggregate"

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
        progress = aggregated(round, scored(progress, scores), found, "dsvd")
        if self.alpha is not None:
            return progress
        vectors, values, whole = alpha.tolist()
        return progress.measure(alpha_vectors=vectors, alpha_values=values, alpha_updates=whole)


def parse_similarity_weights(text: str, scale: str) -> tuple[float, ...] | None:
    """α₁, α₂, α₃; None: "auto". Under the paper's own scale they need not sum to 1: its extremes run."""
    if text == "auto":
        return None
    key = f"strategy.similarity-weights = {text!r}"
    try:
        alpha = tuple(float(part) for part in text.split(","))
    except ValueError:
        alpha = ()
    if len(alpha) != 3 or not all(0 <= value < math.inf for value in alpha):
        raise UserError(f"{key}: should be auto or three numbers of 0 or more, such as {ALPHA}")
    if scale != "paper" and abs(sum(alpha) - 1) > 1e-6:
        raise UserError(f"{key}: should sum to 1, not {sum(alpha):g}")
    return alpha
