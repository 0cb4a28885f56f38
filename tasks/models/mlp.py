"""A network without convolutions: it takes images of any size."""

from __future__ import annotations

from torch import nn

from thistle.tasks.models.registry import MODELS, Dropout, Shape


@MODELS.add("mlp")
def mlp(shape: Shape, classes: int, dropout: Dropout) -> nn.Module:
    """Two hidden layers of 200."""
    inputs = shape[0] * shape[1] * shape[2]
    hidden = [nn.Linear(inputs, 200), nn.ReLU(), dropout(0.0), nn.Linear(200, 200), nn.ReLU(), dropout(0.0)]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(200, classes))
