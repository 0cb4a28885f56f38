"""What a step of a pipeline sees and what it hands on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from thistle.experiments.errors import UserError
from thistle.protocol.factors import is_matrix, sides
from thistle.protocol.layout import Layout
from thistle.strategies.aggregators.spectra import Matrix, Spectra

if TYPE_CHECKING:
    from thistle.strategies.steps.agreement import Anchor


class Server(Protocol):
    """What the server can learn from its own data (thistle.strategies.steps.learning)."""

    def gradient(self) -> Tensor:
        """g0 at the model that was sent."""

    def anchor(self) -> Anchor:
        """Descent directions of the server's classes at the model that was sent."""

    def loss(self, vector: Tensor) -> float:
        """f0 at this model."""

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
    """n, float64: how many images each client trained on, up to the accepted limit."""
    class_counts: Tensor | None = None
    """n×C: how many of them are of which class, where clients were asked."""
    layout: Layout | None = None
    """Where the model's arrays are in the flat vector."""
    connected: int = 0
    """Clients that were there when this round's were sampled."""

    @cached_property
    def matrices(self) -> tuple[Matrix, ...]:
        """Where the matrix layers are in the flat vector."""
        assert self.layout is not None
        return matrices_of(self.layout)

    @cached_property
    def gradient(self) -> Tensor:
        """g0, computed once where a step asks for it."""
        if self.server is None:
            raise UserError("no server data: a step of this strategy asks for the server's gradient")
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
    reasons: Mapping[int, str] = field(default_factory=dict)
    """Row → the reason in words, if the step gave one."""
    faint: Mapping[int, str] = field(default_factory=dict)
    """Row → how little, in words: who was kept, but has almost no weight in the aggregate."""
    weighed_by: str = ""
    """The step that gave the weights."""
    scores: Tensor | None = None
    """n: the filter's score of each client, or else the aggregator's."""
    thresholds: Tensor | None = None
    """n: the least score with which the filter kept a client; NaN where it went by something else."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    notes: Mapping[str, np.ndarray] = field(default_factory=dict)
    """What goes into the memory."""

    @classmethod
    def begin(cls, updates: Tensor) -> Progress:
        kept = torch.ones(len(updates), dtype=torch.bool)
        return cls(updates, kept, torch.zeros(updates.shape[1]))

    def drop(self, rows: Tensor, step: str, why: Callable[[int], str] | str = "") -> Progress:
        """Without these rows (n booleans); `why` in words, the same for all or by row."""
        gone = (rows & self.kept).nonzero().flatten().tolist()
        named = dict.fromkeys(gone, step)
        said = {row: why if isinstance(why, str) else why(row) for row in gone} if why else {}
        dropped_by, reasons = {**self.dropped_by, **named}, {**self.reasons, **said}
        return replace(self, kept=self.kept & ~rows, dropped_by=dropped_by, reasons=reasons)

    def score(self, scores: Tensor, threshold: float = math.nan) -> Progress:
        """With a filter's scores of those it sees; who was dropped before keeps what that was for."""
        thresholds = torch.full_like(scores, threshold)
        if self.scores is not None and self.thresholds is not None:
            scores = torch.where(self.kept, scores, self.scores)
            thresholds = torch.where(self.kept, thresholds, self.thresholds)
        return replace(self, scores=scores, thresholds=thresholds)

    def mattered(self) -> Tensor:
        """n booleans: who was kept, and with a weight that matters."""
        mattered = self.kept.clone()
        mattered[list(self.faint)] = False
        return mattered

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
    """One part of a pipeline. `stage`, where it has one, says where an option of that kind goes: see `arrange`."""

    def __call__(self, round: Round, progress: Progress) -> Progress: ...


LEARN = "learn"
STAGES = ("cut", "filter", "limit", "pre", "aggregate", "control", "head", "rate", "clip", LEARN)
"""The order of the parts that a pipeline may have."""


def stage(step: Step) -> str:
    """What kind of part this is; a plain function counts as an aggregator."""
    return getattr(step, "stage", "aggregate")


def arrange(rule: Sequence[Step | None], options: Sequence[Step]) -> tuple[Step, ...]:
    """The rule's steps in its own order, and an option's step where the rule has none of that stage.

    What is turned off is left out: None, and steps that say they are `off`.
    """
    taken = {stage(step) for step in rule if step is not None}
    taken |= {name for step in rule if step is not None for name in getattr(step, "instead_of", ())}
    steps = [step for step in rule if step is not None and not getattr(step, "off", False)]
    for option in options:
        if stage(option) in taken or getattr(option, "off", False):
            continue
        place = STAGES.index(stage(option))
        later = (index for index, step in enumerate(steps) if STAGES.index(stage(step)) > place)
        steps.insert(next(later, len(steps)), option)
    return tuple(steps)


@cache
def matrices_of(layout: Layout) -> tuple[Matrix, ...]:
    """Where the flat vector's matrix layers are."""
    return tuple((layout.starts[entry.name], *sides(entry)) for entry in layout.trained if is_matrix(entry))
