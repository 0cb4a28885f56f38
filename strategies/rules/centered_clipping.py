"""Centered clipping: no client moves the model by more than τ from where the last round went."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from thistle.experiments.errors import UserError
from thistle.experiments.settings import NonNegative
from thistle.strategies import aggregators
from thistle.strategies.pipeline import Pipeline
from thistle.strategies.registry import setting, strategy
from thistle.strategies.rounds import Progress, Round, Step
from thistle.strategies.steps.aggregation import aggregated, kept_updates, nothing


@strategy("centered-clipping", "Karimireddy et al. 2021")
class CenteredClipping(Pipeline):
    """Updates clipped around the last aggregate."""

    tau: NonNegative = setting("the radius to which updates are clipped, above 0", default=1.0)

    def steps(self) -> list[Step | None]:
        """The one step clips and sums."""
        return [ClipAroundLast(self.tau)]

    def check_settings(self) -> None:
        """Without a radius nothing would move."""
        super().check_settings()
        if not self.tau:
            raise UserError("strategy.tau = 0.0: centered clipping needs a radius above 0")


@dataclass(frozen=True)
class ClipAroundLast:
    """Each update clipped to τ around the last round's aggregate (Karimireddy et al. 2021)."""

    tau: float
    stage: ClassVar[str] = "aggregate"
    takes_mixing: ClassVar[bool] = True
    instead_of: ClassVar[tuple[str, ...]] = ("clip",)

    def __call__(self, round: Round, progress: Progress) -> Progress:
        if not progress.kept.any():
            return nothing(progress)
        last = round.memory.get("centre")
        start = None if last is None else torch.from_numpy(last)
        found = aggregators.centered_clipping(kept_updates(progress), self.tau, start=start, mixing=progress.mixing)
        return aggregated(round, progress, found, "centered-clipping").note(centre=found.vector.numpy())
