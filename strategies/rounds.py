"""What a step of a pipeline sees and what it hands on."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from exchange.verdict import Verdict


@dataclass(frozen=True)
class Round:
    """One round's material, the same for every step. Rows are sorted by client id."""

    number: int
    ids: tuple[int, ...]
    updates: Tensor
    """n×d, float32: each client's model minus the one that was sent."""
    prior: Tensor
    """n, float64, sums to 1: what each client would weigh if nothing else were known."""
    model: Tensor
    """d: the model that was sent."""
    lr: float
    """The clients' learning rate in this round."""


@dataclass(frozen=True)
class Progress:
    """What the steps so far have made of it."""

    kept: Tensor
    """n booleans: who has not been filtered out."""
    step: Tensor
    """d: the change of the model, as far as it is known."""
    weights: Tensor | None = None
    """n, float64: the weight that the aggregate gave each client; None before there is one."""
    verdicts: dict[int, Verdict] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)

    @classmethod
    def begin(cls, round: Round) -> Progress:
        return cls(kept=torch.ones(len(round.ids), dtype=torch.bool), step=torch.zeros_like(round.model))

    def with_metrics(self, **metrics: float) -> Progress:
        return replace(self, metrics={**self.metrics, **metrics})


class Step(Protocol):
    """One stage of a pipeline: filter, aggregate, clip, learn."""

    def __call__(self, round: Round, progress: Progress) -> Progress: ...
