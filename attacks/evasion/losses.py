"""What adversarial examples maximise: functions of logits and labels, one value per image."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy as _cross_entropy

ImageLoss = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """−log p_y: FGSM, BIM, PGD."""
    return _cross_entropy(logits, labels, reduction="none")


def margin(logits: Tensor, labels: Tensor) -> Tensor:
    """max_{k≠y} f_k − f_y, above 0 where the image is broken (Carlini & Wagner 2017, their f6 without a bound)."""
    others = logits.scatter(1, labels[:, None], -torch.inf)
    return others.amax(1) - logits.gather(1, labels[:, None]).squeeze(1)


def soft_cross_entropy(target: Tensor) -> ImageLoss:
    """−Σ_k q_k log p_k for a fixed distribution q: up to a constant KL(q‖p). TRADES, and CalFAT's CKL (its eq. 15)."""
    fixed = target.detach()
    return lambda logits, _: _cross_entropy(logits, fixed, reduction="none")
