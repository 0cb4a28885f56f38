"""What is done to the aggregate before it is added to the model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from thistle.strategies import aggregators
from thistle.strategies.rounds import Progress, Round


@dataclass(frozen=True)
class ServerRate:
    """η_g: the aggregate times a constant."""

    rate: float
    stage: ClassVar[str] = "rate"

    @property
    def off(self) -> bool:
        return self.rate == 1

    def __call__(self, round: Round, progress: Progress) -> Progress:
        return replace(progress, step=progress.step * self.rate)


@dataclass(frozen=True)
class Clip:
    """Clip_τ(v) = v·min(1, τ/‖v‖). τ 0: no clip."""

    tau: float
    stage: ClassVar[str] = "clip"

    @property
    def off(self) -> bool:
        return not self.tau

    def __call__(self, round: Round, progress: Progress) -> Progress:
        return replace(progress, step=aggregators.clip(progress.step, self.tau))
