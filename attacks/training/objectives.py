"""Objectives of adversarial training: how examples are crafted, and what the model then minimises on them.

x are the images of a batch, x̃ the adversarial ones, y the labels; f stands for the logits after calibration
(thistle.attacks.training.calibrations), p for their softmax. An objective is a function that the model minimises,
entered under its name together with the function that crafts its examples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax, softmax

from thistle.attacks.evasion.engine import Budget, Crafted, Forward, anywhere, at_rest, craft, nearby
from thistle.attacks.evasion.losses import cross_entropy, soft_cross_entropy
from thistle.attacks.training.calibrations import View
from thistle.experiments.registry import Registry
from thistle.experiments.settings import Client
from thistle.tasks.models import predict

BETA_TRADES, BETA_MART = 6.0, 5.0
LAMBDA_GAIRAT = -1.0


@dataclass(frozen=True, eq=False)
class Setting:
    """What the formulas need besides images: the search's budget, its random numbers, whether GAIRAT is warm."""

    budget: Budget
    generator: torch.Generator
    warm: bool = True


Craft = Callable[[Forward, Tensor, Tensor, Setting], Crafted]
Minimise = Callable[[Forward, Tensor, Crafted, Tensor, Setting], Tensor]


@dataclass(frozen=True)
class Objective:
    """What `client.objective` names."""

    craft: Craft
    minimise: Minimise
    ratio: float = 1.0
    """The part of each batch that is made adversarial, unless `client.adversarial-ratio` says otherwise."""
    warms_up: bool = False
    """Whether `client.warmup` has a meaning: `Setting.warm` is false in that many first rounds."""


OBJECTIVES: Registry[Objective] = Registry("objective")


def objective(
    name: str, about: str, paper: str = "", *, examples: Craft, ratio: float = 1.0, warms_up: bool = False
) -> Callable[[Minimise], Minimise]:
    """Enter the function that follows as an objective; `examples` crafts what it is minimised on."""

    def enter(minimise: Minimise) -> Minimise:
        OBJECTIVES.add(name, about, paper)(Objective(examples, minimise, ratio, warms_up))
        return minimise

    return enter


def against_labels(forward: Forward, pixels: Tensor, labels: Tensor, setting: Setting) -> Crafted:
    """PGD (Madry et al. 2018): maximise CE(x'), start uniform in the ε-ball."""
    start = anywhere(pixels, setting.budget.epsilon, setting.generator)
    return craft(forward, pixels, labels, cross_entropy, setting.budget, start)


def against_self(forward: Forward, pixels: Tensor, labels: Tensor, setting: Setting) -> Crafted:
    """Maximise −Σ p(x) log p(x'), from x + 0.001·N: KL(f(x)‖f(x')) of TRADES, and CalFAT's CKL (eq. 14 and 15)."""
    with torch.no_grad():
        target = softmax(forward(pixels), 1)
    start = nearby(pixels, setting.generator)
    return craft(forward, pixels, labels, soft_cross_entropy(target), setting.budget, start)


@objective("standard", "CE(x): clean images only", examples=against_labels, ratio=0.0)
def natural_loss(forward: Forward, pixels: Tensor, crafted: Crafted, labels: Tensor, setting: Setting) -> Tensor:
    """CE(x)."""
    return cross_entropy(forward(pixels), labels).mean()


@objective("pgd", "CE(x̃), x̃ by PGD on the cross-entropy", "Madry et al. 2018 (FedPGD)", examples=against_labels)
def adversarial_loss(forward: Forward, pixels: Tensor, crafted: Crafted, labels: Tensor, setting: Setting) -> Tensor:
    """CE(x̃): FedPGD; MixFAT (Zizzo et al. 2020) and FedRBN (Hong et al. 2021) on their part of the batch; CalFAT's
    CCE (eq. 13) once f is calibrated."""
    return cross_entropy(forward(crafted.pixels), labels).mean()


objective(
    "mix",
    "CE of a batch of which half is made adversarial, as by pgd",
    "Zizzo et al. 2020 (MixFAT)",
    examples=against_labels,
    ratio=0.5,
)(adversarial_loss)

objective(
    "fedrbn",
    "as pgd, with separate batch-norm statistics for clean and adversarial images",
    "Hong et al. 2021",
    examples=against_labels,
)(adversarial_loss)

objective(
    "ckl",
    "CE(x̃), x̃ farthest from x in what the model says: CalFAT's, with its calibration",
    "Chen et al. 2022",
    examples=against_self,
)(adversarial_loss)


@objective("trades", "CE(x) + 6·KL(f(x)‖f(x̃)), x̃ as by ckl", "Zhang et al. 2019", examples=against_self)
def trades(forward: Forward, pixels: Tensor, crafted: Crafted, labels: Tensor, setting: Setting) -> Tensor:
    """CE(x) + 6·KL(f(x)‖f(x̃)) (Zhang et al. 2019)."""
    natural, adversarial = forward(pixels), forward(crafted.pixels)
    return cross_entropy(natural, labels).mean() + BETA_TRADES * divergence(natural, adversarial).mean()


@objective("mart", "boosted CE(x̃) + 5·KL, weighted by doubt, x̃ as by pgd", "Wang et al. 2020", examples=against_labels)
def mart(forward: Forward, pixels: Tensor, crafted: Crafted, labels: Tensor, setting: Setting) -> Tensor:
    """BCE(x̃) + 5·mean KL(x‖x̃)·(1 − p_y(x)), BCE = −log p_y(x̃) − log(1 − max_{k≠y} p_k(x̃)) (Wang et al. 2020)."""
    natural, adversarial = forward(pixels), forward(crafted.pixels)
    doubt = 1 - softmax(natural, 1).gather(1, labels[:, None]).squeeze(1)
    boosted = cross_entropy(adversarial, labels) - log_without_runner_up(adversarial, labels)
    return boosted.mean() + BETA_MART * (divergence(natural, adversarial) * doubt).mean()


@objective(
    "gairat",
    "CE(x̃), weighted by the steps that an image withstood, x̃ as by pgd",
    "Zhang et al. 2021",
    examples=against_labels,
    warms_up=True,
)
def gairat(forward: Forward, pixels: Tensor, crafted: Crafted, labels: Tensor, setting: Setting) -> Tensor:
    """Σ ω(κ) CE(x̃) / Σ ω, ω = (1 + tanh(λ + 5(1 − 2κ/K)))/2, λ = −1; ω = 1 while warming up (Zhang et al. 2021)."""
    values = cross_entropy(forward(crafted.pixels), labels)
    if not setting.warm:
        return values.mean()
    distance = 1 - 2 * crafted.kappa / setting.budget.steps
    weights = (1 + torch.tanh(LAMBDA_GAIRAT + 5 * distance)) / 2
    return (weights * values).sum() / weights.sum()


def divergence(logits: Tensor, others: Tensor) -> Tensor:
    """KL(softmax(logits)‖softmax(others)), one value per image."""
    log_p, log_q = log_softmax(logits, 1), log_softmax(others, 1)
    return (log_p.exp() * (log_p - log_q)).sum(1)


def log_without_runner_up(logits: Tensor, labels: Tensor) -> Tensor:
    """log(1 − max_{k≠y} p_k), as a sum over the other classes: finite where 1 − p would be rounded to 0."""
    log_p = log_softmax(logits, 1)
    runner_up = log_p.detach().scatter(1, labels[:, None], -torch.inf).argmax(1, keepdim=True)
    return log_p.scatter(1, runner_up, -torch.inf).logsumexp(1)


def adversarial_ratio(client: Client) -> float:
    """The part of each batch that is made adversarial: as the settings say, or as the objective has it."""
    given = client.adversarial_ratio
    return OBJECTIVES[client.objective].ratio if given == "default" else given


def craft_at_rest(
    craft_: Craft, model: nn.Module, view: View, pixels: Tensor, labels: Tensor, setting: Setting
) -> Crafted:
    """Examples against the model in eval mode: no dropout, batch-norm statistics untouched."""
    with at_rest(model):
        return craft_(lambda x: view(predict(model, x), labels), pixels, labels, setting)
