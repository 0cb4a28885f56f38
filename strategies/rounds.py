"""What a step of a pipeline sees and what it hands on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from thistle.experiments.errors import UserError
from thistle.strategies.aggregators.spectra import Spectra


class Server(Protocol):
    """What the server can learn from its own data (thistle.strategies.learning)."""

    def gradient(self) -> Tensor:
        """g0 at the model that was sent."""

    def learn(self, start: Tensor, rate: float) -> Tensor:
        """Where local SGD on the server's data leads from `start`."""


@dataclass(frozen=True)
class Round:
    """One round's material, the same for every step. Rows are sorted by client id."""

    number: int
    ids: tuple[int, ...]
    prior: Tensor
    """n, float64, sums to 1: what each client would weigh if nothing else were known."""
    model: Tensor
    """d: the model that was sent."""
    lr: float
    """The clients' learning rate in this round."""
    server: Server | None
    memory: Mapping[str, np.ndarray] = field(default_factory=dict)
    """What steps wrote down in earlier rounds."""
    ranks: Tensor | None = None
    """n, float64: the rank to which each client's update is cut, as a fraction of every layer's; None: uncut."""
    examples: Tensor | None = None
    """n, float64: how many images each client trained on, as far as it is believed."""
    class_counts: Tensor | None = None
    """n×C: how many of them are of which class, where clients were asked."""

    @cached_property
    def gradient(self) -> Tensor:
        """g0, computed once where a step asks for it."""
        if self.server is None:
            raise UserError("task.server-data = none: a step of this strategy asks for the server's gradient")
        return self.server.gradient()


@dataclass(frozen=True)
class Progress:
    """What the steps so far have made of it."""

    updates: Tensor
    """n×d, float32: each client's model minus the one that was sent."""
    kept: Tensor
    """n booleans: who has not been filtered out."""
    step: Tensor
    """d: the change of the model, as far as it is known."""
    mixing: Tensor | None = None
    """n'×kept: rows of the aggregate's input as combinations of the kept updates."""
    weights: Tensor | None = None
    """n, float64: what each client had in the aggregate; None before there is one."""
    spectra: Spectra | None = None
    """Singular values and directions of the updates, where the aggregator goes by them."""
    voters: Tensor | None = None
    """n booleans: whose buffers count; None: not said, see `heard`."""
    coordinatewise: bool = False
    """Whether the aggregate was made coordinate by coordinate."""
    dropped_by: Mapping[int, str] = field(default_factory=dict)
    """Row → the step that filtered it out."""
    scores: Tensor | None = None
    """n: the filter's score of each client, or else the aggregator's."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    notes: Mapping[str, np.ndarray] = field(default_factory=dict)
    """What goes into the memory."""

    @classmethod
    def begin(cls, updates: Tensor) -> Progress:
        kept = torch.ones(len(updates), dtype=torch.bool)
        return cls(updates, kept, torch.zeros(updates.shape[1]))

    def drop(self, rows: Tensor, step: str) -> Progress:
        """Without these rows (n booleans)."""
        gone = rows & self.kept
        named = {int(row): step for row in gone.nonzero()}
        return replace(self, kept=self.kept & ~gone, dropped_by={**self.dropped_by, **named})

    def heard(self) -> Tensor:
        """n booleans: whose buffers count. Nobody's, where nothing was aggregated."""
        if self.voters is not None:
            return self.voters
        return torch.zeros_like(self.kept) if self.weights is None else self.kept

    def measure(self, **metrics: float) -> Progress:
        """With numbers for metrics.jsonl; `filter_empty` is written filter.empty."""
        named = {name.replace("_", ".", 1): value for name, value in metrics.items()}
        return replace(self, metrics={**self.metrics, **named})

    def note(self, **arrays: np.ndarray) -> Progress:
        """With something to remember for the next rounds."""
        return replace(self, notes={**self.notes, **arrays})


class Step(Protocol):
    """One stage of a pipeline: filter, aggregate, clip, learn."""

    def __call__(self, round: Round, progress: Progress) -> Progress: ...
