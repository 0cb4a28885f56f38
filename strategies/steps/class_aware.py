"""Class-aware averaging of the head: who never saw a class does not pull its row."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from thistle.experiments.errors import UserError
from thistle.protocol.layout import Layout
from thistle.strategies.rounds import Progress, Round


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


def class_weights(counts: Tensor, examples: Tensor, delta: float) -> Tensor:
    """n×C, columns sum to 1: what client i's row of class c weighs, ∝ n_i^c + δ n_i."""
    raw = counts.double() + delta * examples.double()[:, None]
    return raw / raw.sum(0)


@dataclass(frozen=True)
class ClassAwareHead:
    """After a mean: row c of the head is averaged again, over the kept clients, with weights ∝ n_i^c + δ n_i."""

    delta: float
    stage: ClassVar[str] = "head"

    def check(self, layout: Layout) -> None:
        """Refuse models without a linear layer."""
        Head.of(layout)

    def __call__(self, round: Round, progress: Progress) -> Progress:
        if round.class_counts is None or round.examples is None:
            raise ValueError("class-aware averaging: clients must report their class-counts")
        if not progress.kept.any():
            return progress
        assert round.layout is not None
        kept, head = progress.kept, Head.of(round.layout, round.class_counts.shape[1])
        weights = class_weights(round.class_counts[kept], round.examples[kept], self.delta).float()
        step = progress.step.clone()
        rows = progress.updates[kept, head.weight].reshape(len(weights), head.classes, -1)
        step[head.weight] = torch.einsum("nc,ncw->cw", weights, rows).reshape(-1)
        if head.bias is not None:
            step[head.bias] = (weights * progress.updates[kept, head.bias]).sum(0)
        return replace(progress, step=step)
