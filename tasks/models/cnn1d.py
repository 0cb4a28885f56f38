"""A network for series: channels × time."""

from __future__ import annotations

import math

from torch import Tensor, nn

from thistle.tasks.dataset import Shape
from thistle.tasks.models.registry import MODELS, Dropout, any_shape

WINDOWS = 8
"""Into which the series is averaged before the dense layers, so that series may have any length."""


class AsSeries(nn.Module):
    """n×…×c×t as n×(…·c)×t; n×t as one channel."""

    def forward(self, values: Tensor) -> Tensor:
        return values.unsqueeze(1) if values.ndim == 2 else values.flatten(1, -2)


@MODELS.add("cnn1d")
@any_shape
def cnn1d(shape: Shape, classes: int, dropout: Dropout) -> nn.Module:
    """Two convolutions over time (32 and 64 channels, width 5), pools, dense 64; for series, channels × time."""
    channels = math.prod(shape[:-1])
    windows = min(WINDOWS, shape[-1])
    return nn.Sequential(
        AsSeries(),
        nn.Conv1d(channels, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool1d(2, ceil_mode=True),
        nn.Conv1d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(windows),
        dropout(0.25),
        nn.Flatten(),
        nn.Linear(64 * windows, 64),
        nn.ReLU(),
        dropout(0.5),
        nn.Linear(64, classes),
    )
