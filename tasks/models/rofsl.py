"""The networks of RoFSL's experiments, and the default that chooses between them."""

from __future__ import annotations

from torch import nn

from thistle.tasks.dataset import Shape
from thistle.tasks.models.parts import conv, finish, two_dense
from thistle.tasks.models.registry import MODELS, Dropout, any_shape

PAPER = "Mai et al. 2026"


@MODELS.add("cnn-emnist", paper=PAPER)
def cnn_emnist(shape: Shape, classes: int, dropout: Dropout) -> nn.Module:
    """RoFSL's EMNIST network: Conv 32, Conv 64, pool, dropout .25, dense 128, dropout .5, dense."""
    features = [*conv(shape[0], 32), *conv(32, 64), nn.MaxPool2d(2), dropout(0.25)]
    return finish(features, shape, two_dense(classes, dropout))


@MODELS.add("cnn-cifar", paper=PAPER)
def cnn_cifar(shape: Shape, classes: int, dropout: Dropout) -> nn.Module:
    """RoFSL's CIFAR network: Conv 32, pool, Conv 64, pool, dropout .25, dense 128, dropout .5, dense."""
    features = [*conv(shape[0], 32), nn.MaxPool2d(2), *conv(32, 64), nn.MaxPool2d(2), dropout(0.25)]
    return finish(features, shape, two_dense(classes, dropout))


@MODELS.add("auto")
@any_shape
def auto(shape: Shape, classes: int, dropout: Dropout) -> nn.Module:
    """cnn-emnist for grey images, cnn-cifar for coloured ones, cnn1d for series, mlp for tables and anything else."""
    return MODELS[meant("auto", shape)](shape, classes, dropout)


def meant(name: str, shape: Shape) -> str:
    """The model of this name, or the one that `auto` stands for."""
    if name != "auto":
        return name
    if len(shape) != 3:
        return "cnn1d" if len(shape) == 2 else "mlp"
    return "cnn-emnist" if shape[0] == 1 else "cnn-cifar"
