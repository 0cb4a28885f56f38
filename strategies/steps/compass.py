"""The direction by which RoFSL's filter judges, once the server's own learning has turned its gradient.

A server that learns on the data it judges by comes to rest where γ∇f0 + ∇F = 0: honest updates then go *along* +∇f0
and score worse than nothing at all. The correction takes out what the gradient has in common over the rounds, which is
that pull, and puts the clients' own accepted direction in its place:

    ĝ = g0 − b + ‖b‖·(−a/‖a‖),        b, a: running means of g0 and of the accepted steps, before server learning
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from thistle.strategies.aggregators.clipping import unit
from thistle.strategies.rounds import Progress, Round

PULL, ACCEPTED = "compass.pull", "compass.accepted"
KEPT = 0.9
"""Of the running means, from round to round."""


def corrected(round: Round) -> Tensor:
    """ĝ; g0 itself before any step was accepted."""
    if ACCEPTED not in round.memory:
        return round.gradient
    pull, accepted = (torch.from_numpy(round.memory[name]) for name in (PULL, ACCEPTED))
    return round.gradient - pull - pull.norm() * unit(accepted)


@dataclass(frozen=True)
class RememberDirections:
    """After the clients' step, before the server's own: the running means of the next round."""

    stage: ClassVar[str] = "clip"

    def __call__(self, round: Round, progress: Progress) -> Progress:
        if not bool(progress.step.any()):
            return progress
        now = {PULL: round.gradient.numpy(), ACCEPTED: progress.step.numpy()}
        return progress.note(**{name: _mean(round.memory.get(name), value) for name, value in now.items()})


def _mean(before: np.ndarray | None, now: np.ndarray) -> np.ndarray:
    mean: np.ndarray = now.copy() if before is None else KEPT * before + (1 - KEPT) * now
    return mean.astype(np.float32)
