"""What several networks are put together from."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from thistle.tasks.dataset import Shape
from thistle.tasks.models.registry import Dropout


def conv(inputs: int, outputs: int, padding: int = 1) -> list[nn.Module]:
    """A 3×3 convolution and its ReLU."""
    return [nn.Conv2d(inputs, outputs, 3, padding=padding), nn.ReLU()]


def finish(features: list[nn.Module], shape: Shape, head: Callable[[int], list[nn.Module]]) -> nn.Sequential:
    """Convolutions, then the layers that `head` makes for their flattened width."""
    with torch.no_grad():
        width = nn.Sequential(*features).eval()(torch.zeros(1, *shape)).numel()
    return nn.Sequential(*features, nn.Flatten(), *head(width))


def two_dense(classes: int, dropout: Dropout) -> Callable[[int], list[nn.Module]]:
    """A head: dense 128, dropout .5, dense."""
    return lambda width: [nn.Linear(width, 128), nn.ReLU(), dropout(0.5), nn.Linear(128, classes)]
