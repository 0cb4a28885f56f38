"""Networks without convolutions: they take inputs of any shape."""

from __future__ import annotations

import math

from torch import nn

from thistle.tasks.dataset import Shape
from thistle.tasks.models.registry import MODELS, Dropout, any_shape


@MODELS.add("mlp")
@any_shape
def mlp(shape: Shape, classes: int, dropout: Dropout) -> nn.Module:
    """Two hidden layers of 200; for inputs of any shape."""
    inputs = math.prod(shape)
    hidden = [nn.Linear(inputs, 200), nn.ReLU(), dropout(0.0), nn.Linear(200, 200), nn.ReLU(), dropout(0.0)]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(200, classes))


@MODELS.add("logistic")
@any_shape
def logistic(shape: Shape, classes: int, dropout: Dropout) -> nn.Module:
    """Multinomial logistic regression, one linear layer; for inputs of any shape."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))
