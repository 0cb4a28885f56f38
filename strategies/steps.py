"""The steps that strategies are made of."""

from __future__ import annotations

from dataclasses import dataclass, replace

from strategies.rounds import Progress, Round


@dataclass(frozen=True)
class Mean:
    """The weighted mean of the kept updates."""

    def __call__(self, round: Round, progress: Progress) -> Progress:
        weights = round.prior * progress.kept
        weights = weights / weights.sum()
        return replace(progress, step=weights.to(round.updates.dtype) @ round.updates, weights=weights)


@dataclass(frozen=True)
class ServerRate:
    """η_g: the aggregate times a constant."""

    rate: float

    def __call__(self, round: Round, progress: Progress) -> Progress:
        return replace(progress, step=progress.step * self.rate)
