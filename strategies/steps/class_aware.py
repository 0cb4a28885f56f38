"""Class-aware averaging of the head: who never saw a class does not pull its row.

The rule's own weights stay in force: whom it does not trust has no more say in a row than in the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from thistle.experiments.errors import UserError
from thistle.experiments.settings import Value
from thistle.protocol.layout import Layout
from thistle.protocol.training import REPORT_CLASSES
from thistle.strategies.options import Options
from thistle.strategies.registry import setting
from thistle.strategies.rounds import Progress, Round, Step


@dataclass(frozen=True)
class Head:
    """Where the last linear layer is in the flat vector: its weight, row by row, and its bias if it has one."""

    classes: int
    weight: slice
    bias: slice | None

    @classmethod
    def of(cls, layout: Layout, classes: int | None = None) -> Head:
        """The last matrix of the model, and the vector of the same layer."""
        places: dict[str, slice] = {}
        start = 0
        for entry in layout.trained:
            places[entry.name] = slice(start, start + entry.size)
            start += entry.size
        matrices = [entry for entry in layout.trained if len(entry.shape) == 2]
        if not matrices or classes not in (None, matrices[-1].shape[0]):
            rows = "" if classes is None else f" of {classes} rows"
            raise UserError(f"strategy.class-aware: the model does not end in a linear layer{rows}")
        last = matrices[-1]
        return cls(last.shape[0], places[last.name], places.get(last.name.removesuffix("weight") + "bias"))


def class_weights(counts: Tensor, examples: Tensor, delta: float, weights: Tensor) -> Tensor:
    """n×C, columns sum to 1: what client i's row of class c weighs, ∝ w_i (n_i^c / n_i + δ), w_i by the rule.

    Of a mean weighted by data size, whose w_i are ∝ n_i, that is n_i^c + δ n_i. Elsewhere a client's claim to have many
    examples is worth nothing.
    """
    raw = (counts.double() + delta * examples.double()[:, None]) * (weights / examples.double())[:, None]
    return raw / raw.sum(0)


@dataclass(frozen=True)
class ClassAwareHead:
    """After a rule whose aggregate is Σ w_i Δ_i: row c of the head is averaged again with `class_weights`."""

    delta: float
    stage: ClassVar[str] = "head"

    def check(self, layout: Layout) -> None:
        """Refuse models without a linear layer."""
        Head.of(layout)

    def __call__(self, round: Round, progress: Progress) -> Progress:
        if round.class_counts is None or round.examples is None:
            raise ValueError("class-aware averaging: clients must report their class-counts")
        if progress.weights is None or not progress.weights.any():
            return progress  # nobody was heard: the model stays
        assert round.layout is not None
        kept, head = progress.weights > 0, Head.of(round.layout, round.class_counts.shape[1])
        counts, examples, rules = round.class_counts[kept], round.examples[kept], progress.weights[kept]
        weights = class_weights(counts, examples, self.delta, rules).float()
        step = progress.step.clone()
        rows = progress.updates[kept, head.weight].reshape(len(weights), head.classes, -1)
        step[head.weight] = torch.einsum("nc,ncw->cw", weights, rows).reshape(-1)
        if head.bias is not None:
            step[head.bias] = (weights * progress.updates[kept, head.bias]).sum(0)
        return replace(progress, step=step)


@dataclass(kw_only=True, eq=False, repr=False)
class ClassAware(Options):
    """For rules whose aggregate is the sum of the updates times the weights that they report: class
    RFA(ClassAware, Weighted, Pipeline)."""

    class_aware: bool = setting(
        "whether to average each row of the model's last layer by the number of a client's examples of that class, "
        "times the weight that the rule gives the client; "
        "clients then tell the server how many examples of each class they hold",
        default=False,
    )

    def option_steps(self) -> list[Step]:
        """With the class-aware head where it is asked for."""
        head: list[Step] = [ClassAwareHead(self.prior_delta)] if self.class_aware else []
        return [*super().option_steps(), *head]

    def terms(self) -> dict[str, Value]:
        """Clients are asked for their class counts only where they are needed."""
        return {**super().terms(), **({REPORT_CLASSES: True} if self.class_aware else {})}

    def check_settings(self) -> None:
        """Mixed rows have no class counts."""
        super().check_settings()
        if self.class_aware and self.mixing:
            raise UserError(f"strategy.pre = {self.pre}: strategy.class-aware needs each client's own update; use none")
