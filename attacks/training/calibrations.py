"""Calibrations: what is made of a client's logits in training, given how often it sees each class.

π_y = n_y/n + δ is the client's own prior. None of this is used once the model is trained: at test time, and by
attackers, the network's own logits are seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from thistle.experiments.registry import Registry
from thistle.experiments.settings import Client
from thistle.tasks.models.layers import SCALE

CODES_SCALE, CODES_SHARE = 10.0, 0.1
"""In CalFAT's published code: s, and what the prior weighs where examples are made."""
View = Callable[[Tensor, Tensor], Tensor]
"""(logits, labels) → the logits that a loss sees."""
Make = TypeVar("Make", bound=Callable[..., View])


def log_prior(labels: Tensor, classes: int, delta: float) -> Tensor:
    """log π, π_y = n_y/n + δ: finite for classes that the client has never seen."""
    counts = torch.bincount(labels, minlength=classes).to(torch.float32)
    return (counts / counts.sum() + delta).log()


def log_counts(labels: Tensor, classes: int, delta: float) -> Tensor:
    """log n_y, n_y at least 1: finite too, without a δ."""
    return torch.bincount(labels, minlength=classes).clamp(min=1).to(torch.float32).log()


@dataclass(frozen=True)
class Calibration:
    """What `client.calibration` names."""

    make: Callable[..., View]
    """From the prior, and `client.logit-scale` where it `scales`."""
    in_examples: bool = True
    """Whether examples are crafted against it too, as `client.calibration-in` has it; otherwise always against f."""
    scales: bool = False
    prior: Callable[[Tensor, int, float], Tensor] = log_prior
    """From a client's labels, the number of classes and δ to what it is made from: log π."""
    make_examples: Callable[[Tensor], View] | None = None
    """What examples are crafted against, where that is something else."""

    def view(self, prior: Tensor, client: Client) -> View:
        """As these settings have it; `prior` is log π."""
        return self.make(prior, client.logit_scale) if self.scales else self.make(prior)


CALIBRATIONS: Registry[Calibration] = Registry("calibration")


def calibration(name: str, about: str, paper: str = "", **choices: Any) -> Callable[[Make], Make]:
    """Enter the class that follows: it is made from log π, and turns (logits, labels) into logits."""

    def enter(make: Make) -> Make:
        CALIBRATIONS.add(name, about, paper)(Calibration(make, **choices))
        return make

    return enter


def plain(logits: Tensor, labels: Tensor) -> Tensor:
    """f."""
    return logits


@calibration("none", "f", in_examples=False)
def uncalibrated(prior: Tensor) -> View:
    """f, whatever the prior."""
    return plain


@calibration(
    "calfat",
    "s·f + log π, with s = client.logit-scale: the prior is inside the softmax",
    "Chen et al. 2022",
    scales=True,
)
@dataclass(frozen=True, eq=False)
class CalFAT:
    """h = s·f + log π (Chen et al. 2022, eq. 12 and 13, the prior inside the softmax)."""

    log_prior: Tensor
    scale: float

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        return torch.add(self.log_prior, logits, alpha=self.scale)


CALIBRATIONS.add(
    "calfat-code",
    "10·f + log n in the loss, f + 0.1·log n for the examples, n at least 1: CalFAT's published code",
    "Chen et al. 2022",
)(
    Calibration(
        lambda prior: CalFAT(prior, CODES_SCALE),
        prior=log_counts,
        make_examples=lambda prior: CalFAT(CODES_SHARE * prior, 1.0),
    )
)


@calibration("logit-adjust", "f + log π in the loss, f for the examples", "Menon et al. 2021", in_examples=False)
@dataclass(frozen=True, eq=False)
class LogitAdjustment:
    """f + τ log π with τ = 1 (Menon et al. 2021)."""

    log_prior: Tensor
    tau: float = 1.0

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        return logits + self.tau * self.log_prior


@calibration(
    "robal",
    "10·cos_k + 1.2·log π_k for every class k, less 10·0.1 for an image's own",
    "Wu et al. 2021",
)
@dataclass(frozen=True, eq=False)
class RoBal:
    """s·cos_k + τ_b·log π_k, less s·m₀ + τ_m·log(π_y/π_min) for an image's own class y (Wu et al. 2021).

    s·cos is what the network's head gives, with s = 10 (thistle.tasks.models.layers.CosineHead).
    """

    log_prior: Tensor
    margin: float = 0.1
    """m₀."""
    class_margin: float = 0.0
    """τ_m: how much more margin frequent classes get."""
    prior_weight: float = 1.2
    """τ_b."""

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        margins = SCALE * self.margin + self.class_margin * (self.log_prior - self.log_prior.min())
        return logits + self.prior_weight * self.log_prior - margins * one_hot(labels, len(margins))


@dataclass(frozen=True)
class Views:
    """What the model's loss sees, and what the search for adversarial examples sees."""

    loss: View
    examples: View


def make_views(client: Client, prior: Tensor) -> Views:
    """As `client.calibration` and `client.calibration-in` have it; `prior` is log π (`prior_of`)."""
    chosen = CALIBRATIONS[client.calibration]
    view = chosen.view(prior, client)
    if not chosen.in_examples:
        return Views(view, plain)
    examples = chosen.make_examples(prior) if chosen.make_examples else view
    return Views(
        plain if client.calibration_in == "examples" else view,
        plain if client.calibration_in == "loss" else examples,
    )


def prior_of(client: Client, labels: Tensor, classes: int) -> Tensor:
    """log π of a client with these labels, as `client.calibration` counts them."""
    return CALIBRATIONS[client.calibration].prior(labels, classes, client.prior_delta)
