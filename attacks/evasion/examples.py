"""Adversarial examples for any `nn.Module` from inputs to logits (n × classes).

Each function returns inputs that differ from `x` by at most `epsilon` in every value and stay within `bounds` (None:
no bounds). The model is in eval mode meanwhile, every module is then back in its own mode, and no parameter gets a
gradient. `x` may have any shape (n × …); it is on the model's device, and so is the result.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from thistle.attacks.evasion.engine import Budget, anywhere, at_rest, craft
from thistle.attacks.evasion.losses import ImageLoss, cross_entropy, margin
from thistle.tasks.dataset import ANY

Bounds = tuple[float, float] | None


def fgsm(model: nn.Module, x: Tensor, y: Tensor, epsilon: float = 8 / 255, *, bounds: Bounds = (0.0, 1.0)) -> Tensor:
    """One step of ε along the gradient's sign (Goodfellow et al. 2015)."""
    return _examples(model, x, y, cross_entropy, Budget(epsilon, epsilon, 1), bounds)


def bim(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    epsilon: float = 8 / 255,
    step: float = 2 / 255,
    steps: int = 10,
    *,
    bounds: Bounds = (0.0, 1.0),
) -> Tensor:
    """Steps along the gradient's sign, from x (Kurakin et al. 2017)."""
    return _examples(model, x, y, cross_entropy, Budget(epsilon, step, steps), bounds)


def pgd(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    epsilon: float = 8 / 255,
    step: float = 2 / 255,
    steps: int = 10,
    *,
    seed: int = 0,
    bounds: Bounds = (0.0, 1.0),
) -> Tensor:
    """Steps along the gradient's sign, from a random point of the ε-ball that `seed` draws (Madry et al. 2018)."""
    return _examples(model, x, y, cross_entropy, Budget(epsilon, step, steps), bounds, seed=seed)


def cw(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    epsilon: float = 8 / 255,
    step: float = 2 / 255,
    steps: int = 30,
    *,
    bounds: Bounds = (0.0, 1.0),
) -> Tensor:
    """Steps on the margin, in the L∞ ball (Carlini & Wagner 2017); a misclassified input stays as it is then."""
    return _examples(model, x, y, margin, Budget(epsilon, step, steps), bounds, until_broken=True)


def _examples(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    loss: ImageLoss,
    budget: Budget,
    bounds: Bounds,
    until_broken: bool = False,
    seed: int | None = None,
) -> Tensor:
    if not (budget.epsilon >= 0 and budget.step >= 0 and budget.steps >= 1):
        raise ValueError(f"needs epsilon ≥ 0, step ≥ 0 and steps ≥ 1; got {budget}")
    if not x.is_floating_point():
        raise ValueError(f"x must hold floating-point numbers; got {x.dtype}")
    budget = replace(budget, bounds=ANY if bounds is None else bounds)
    start = None if seed is None else anywhere(x, budget.epsilon, torch.Generator().manual_seed(seed))
    with at_rest(model):
        made = craft(model, x.detach(), y, loss, budget, start, until_broken=until_broken)
    return made.pixels.detach()
