"""Calibrations: what is made of a client's logits in training, given how often it sees each class.

π_y = n_y/n + δ is the client's own prior. None of this is used once the model is trained: at test time, and by
attackers, the network's own logits are seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from thistle.experiments.settings import Client
from thistle.tasks.layers import SCALE

View = Callable[[Tensor, Tensor], Tensor]
"""(logits, labels) → the logits that a loss sees."""


def log_prior(labels: Tensor, classes: int, delta: float) -> Tensor:
    """log π, π_y = n_y/n + δ: finite for classes that the client has never seen."""
    counts = torch.bincount(labels, minlength=classes).to(torch.float32)
    return (counts / counts.sum() + delta).log()


def plain(logits: Tensor, labels: Tensor) -> Tensor:
    """f."""
    return logits


@dataclass(frozen=True, eq=False)
class CalFAT:
    """h = s·f + log π (Chen et al. 2022, eq. 12 and 13, the prior inside the softmax)."""

    log_prior: Tensor
    scale: float

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        return torch.add(self.log_prior, logits, alpha=self.scale)


@dataclass(frozen=True, eq=False)
class LogitAdjustment:
    """f + τ log π with τ = 1 (Menon et al. 2021)."""

    log_prior: Tensor
    tau: float = 1.0

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        return logits + self.tau * self.log_prior


@dataclass(frozen=True, eq=False)
class RoBal:
    """10·(cos_y − m_y) for an image's own class y, m = 0.1·log(1/π); 10·cos_k for the others (Wu et al. 2021).

    The cosines, times 10, are what the network's head gives (thistle.tasks.layers.CosineHead).
    """

    log_prior: Tensor
    margin: float = 0.1

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        margins = -self.margin * self.log_prior
        return logits - SCALE * margins * one_hot(labels, len(margins))


@dataclass(frozen=True)
class Views:
    """What the model's loss sees, and what the search for adversarial examples sees."""

    loss: View
    examples: View


CALIBRATIONS: dict[str, Callable] = {"none": plain, "calfat": CalFAT, "logit-adjust": LogitAdjustment, "robal": RoBal}
"""What `client.calibration` names."""


def make_views(client: Client, prior: Tensor) -> Views:
    """As `client.calibration` and `client.calibration-in` have it; `prior` is log π."""
    if client.calibration == "none":
        return Views(plain, plain)
    if client.calibration == "logit-adjust":  # its examples are crafted against f itself
        return Views(LogitAdjustment(prior), plain)
    view = CalFAT(prior, client.logit_scale) if client.calibration == "calfat" else RoBal(prior)
    return Views(
        plain if client.calibration_in == "examples" else view,
        plain if client.calibration_in == "loss" else view,
    )
