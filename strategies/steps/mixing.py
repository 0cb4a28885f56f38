"""Pre-steps: the updates are mixed with each other before they are aggregated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from thistle.experiments.randomness import torch_rng
from thistle.strategies import aggregators
from thistle.strategies.aggregators import Aggregate
from thistle.strategies.rounds import Progress, Round, Step, stage
from thistle.strategies.steps.aggregation import aggregated, kept_updates, nothing


@dataclass(frozen=True)
class NearestNeighbourMixing:
    """NNM: each update becomes the mean of its n − f nearest."""

    malicious: int
    stage: ClassVar[str] = "pre"

    def __call__(self, round: Round, progress: Progress) -> Progress:
        if not progress.kept.any():
            return progress
        return replace(progress, mixing=aggregators.nearest_neighbour_mixing(kept_updates(progress), self.malicious))


@dataclass(frozen=True)
class Bucketing:
    """Means of `size` random updates take the updates' place."""

    seed: int
    size: int = 2
    stage: ClassVar[str] = "pre"

    def __call__(self, round: Round, progress: Progress) -> Progress:
        if not progress.kept.any():
            return progress
        generator = torch_rng(self.seed, "buckets", round.number)
        size = min(self.size, int(progress.kept.sum()))
        return replace(progress, mixing=aggregators.bucketing(kept_updates(progress), size, generator))


@dataclass(frozen=True)
class OnMixedRows:
    """Aggregating steps that know nothing of mixing, carried out on the mixed rows as if these were clients."""

    steps: tuple[Step, ...]
    stage: ClassVar[str] = "aggregate"

    def __call__(self, round: Round, progress: Progress) -> Progress:
        if progress.mixing is None or not progress.kept.any():
            return nothing(progress)
        count, mixing = len(progress.mixing), progress.mixing
        uniform = torch.full((count,), 1 / count, dtype=torch.float64)
        inner = replace(round, ids=tuple(range(count)), prior=uniform, ranks=None, examples=None, class_counts=None)
        updates = kept_updates(progress)
        mixed = Progress.begin(mixing.to(updates.dtype) @ updates)
        for step in self.steps:
            mixed = step(inner, mixed)
        weights = uniform * mixed.kept if mixed.weights is None else mixed.weights
        found = Aggregate(mixed.step, mixing.T @ weights)
        outer = aggregated(round, progress, found, mixed.weighed_by or "aggregate", mixed.coordinatewise)
        return replace(outer, metrics={**outer.metrics, **mixed.metrics}, notes={**outer.notes, **mixed.notes})


def understand_mixing(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The same steps; after a pre-step, those that aggregate work on mixed rows unless all of them know of mixing."""
    aggregating = tuple(step for step in steps if stage(step) == "aggregate")
    knowing = all(getattr(step, "takes_mixing", False) for step in aggregating)
    if knowing or not any(stage(step) == "pre" for step in steps):
        return tuple(steps)
    first = steps.index(aggregating[0])
    others = [step for step in steps if stage(step) != "aggregate"]
    return (*others[:first], OnMixedRows(aggregating), *others[first:])
