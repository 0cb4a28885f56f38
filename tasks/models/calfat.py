"""The network of CalFAT's experiments."""

from __future__ import annotations

from torch import nn

from thistle.experiments.errors import UserError
from thistle.tasks.dataset import Shape
from thistle.tasks.models.parts import conv, finish
from thistle.tasks.models.registry import MODELS, Dropout


@MODELS.add("cnn-calfat", paper="Chen et al. 2022")
def cnn_calfat(shape: Shape, classes: int, dropout: Dropout) -> nn.Module:
    """CalFAT's network: three convolutions of 128 without padding, two pools, one linear layer."""
    if min(shape[1:]) < 18:
        raise UserError(
            f"model.name = cnn-calfat: needs images of at least 18×18, the task's are {shape[1]}×{shape[2]}"
        )
    pool = nn.MaxPool2d(2)
    features = [*conv(shape[0], 128, 0), pool, *conv(128, 128, 0), pool, *conv(128, 128, 0)]
    return finish(features, shape, lambda width: [dropout(0.0), nn.Linear(width, classes)])
