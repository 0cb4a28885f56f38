"""Class-aware averaging of the head: who never saw a class does not pull its row."""

from __future__ import annotations

from dataclasses import dataclass, replace

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
    def of(cls, layout: Layout, classes: int) -> Head:
        """The last matrix of the model, and the vector of the same layer."""
        places: dict[str, slice] = {}
        start = 0
        for entry in layout.trained:
            places[entry.name] = slice(start, start + entry.size)
            start += entry.size
        matrices = [entry for entry in layout.trained if len(entry.shape) == 2]
        if not matrices or matrices[-1].shape[0] != classes:
            raise UserError(f"strategy.class-aware: the model does not end in a linear layer of {classes} rows")
        last = matrices[-1]
        return cls(last.shape[0], places[last.name], places.get(last.name.removesuffix("weight") + "bias"))


def class_weights(counts: Tensor, examples: Tensor, delta: float) -> Tensor:
    """n×C, columns sum to 1: what client i's row of class c weighs, ∝ n_i^c + δ n_i."""
    raw = counts.double() + delta * examples.double()[:, None]
    return raw / raw.sum(0)


@dataclass(frozen=True)
class ClassAwareHead:
    """After a mean: row c of the head is averaged again, over the kept clients, with weights ∝ n_i^c + δ n_i."""

    head: Head
    delta: float

    def __call__(self, round: Round, progress: Progress) -> Progress:
        assert round.class_counts is not None and round.examples is not None
        if not progress.kept.any():
            return progress
        kept = progress.kept
        weights = class_weights(round.class_counts[kept], round.examples[kept], self.delta).float()
        step = progress.step.clone()
        rows = progress.updates[kept, self.head.weight].reshape(len(weights), self.head.classes, -1)
        step[self.head.weight] = torch.einsum("nc,ncw->cw", weights, rows).reshape(-1)
        if self.head.bias is not None:
            step[self.head.bias] = (weights * progress.updates[kept, self.head.bias]).sum(0)
        return replace(progress, step=step)
