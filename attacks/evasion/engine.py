"""The L∞ engine: x' ← Π(x' + step·sign ∇loss), Π onto the ε-ball around x and onto the values that inputs
may have: [0, 1] for images.

Gradients are taken with respect to the images alone: no parameter gets a `.grad`, and in eval mode (`at_rest`) no
statistic moves. Everything keeps the images' memory format, channels last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from thistle.attacks.evasion.losses import ImageLoss
from thistle.tasks.dataset import PIXELS, Bounds

Forward = Callable[[Tensor], Tensor]
"""Images to logits."""


@dataclass(frozen=True)
class Budget:
    """How far (ε, in the units of what the model sees), in how many steps of what size."""

    epsilon: float
    step: float
    steps: int
    bounds: Bounds = PIXELS
    """The least and the greatest value that an input may have."""


@dataclass(frozen=True, eq=False)
class Crafted:
    """Adversarial images, and κ: at how many of the points before each step the image was still classified correctly
    (counted until the first mistake: GAIRAT's distance to the decision boundary)."""

    pixels: Tensor
    kappa: Tensor


def craft(
    forward: Forward,
    pixels: Tensor,
    labels: Tensor,
    loss: ImageLoss,
    budget: Budget,
    start: Tensor | None = None,
    *,
    until_broken: bool = False,
) -> Crafted:
    """`budget.steps` steps uphill from `start` (None: from the images themselves).

    `until_broken`: an image that is misclassified on the way stays as it is then, and costs nothing further.
    """
    low = (pixels - budget.epsilon).clamp_(min=budget.bounds[0])
    high = (pixels + budget.epsilon).clamp_(max=budget.bounds[1])
    current = pixels.clone() if start is None else start.clamp(low, high)
    kappa = torch.zeros_like(labels)
    standing = torch.ones_like(labels, dtype=torch.bool)
    rows: Tensor | slice = slice(None)
    for _ in range(budget.steps):
        if until_broken:
            rows = standing.nonzero().squeeze(1)
        if until_broken and not standing.any():
            break
        logits, gradient = _uphill(forward, current[rows], labels[rows], loss)
        standing[rows] = standing[rows] & (logits.argmax(1) == labels[rows])
        kappa += standing
        if until_broken:
            gradient *= standing[rows].view(-1, *(1,) * (pixels.ndim - 1))
            current[rows] = current[rows].add_(gradient.sign_(), alpha=budget.step).clamp_(low[rows], high[rows])
        else:
            current.add_(gradient.sign_(), alpha=budget.step).clamp_(low, high)
    return Crafted(current, kappa)


def _uphill(forward: Forward, pixels: Tensor, labels: Tensor, loss: ImageLoss) -> tuple[Tensor, Tensor]:
    """Logits at these images, and the loss's gradient there."""
    with torch.enable_grad():
        point = pixels.detach().requires_grad_(True)
        logits = forward(point)
        (gradient,) = torch.autograd.grad(loss(logits, labels).sum(), point)
    return logits.detach(), gradient


def anywhere(pixels: Tensor, epsilon: float, generator: torch.Generator) -> Tensor:
    """A start drawn uniformly from the ε-ball."""
    noise = torch.empty_like(pixels, device="cpu").uniform_(-epsilon, epsilon, generator=generator)
    return pixels + noise.to(pixels.device)


def nearby(pixels: Tensor, generator: torch.Generator, spread: float = 0.001) -> Tensor:
    """A start at x + 0.001·N(0, 1): the gradient of a divergence from x is exactly zero at x itself."""
    noise = torch.empty_like(pixels, device="cpu").normal_(0, spread, generator=generator)
    return pixels + noise.to(pixels.device)


@contextmanager
def at_rest(network: nn.Module) -> Iterator[None]:
    """Inside, the network is in eval mode: no dropout, statistics fixed. Afterwards every module is as it was."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, was_training in modes:
            module.training = was_training
